"""The selections of a job's heads as beats: pairs of each head, filled up to lines, whatever pauses."""

from dataclasses import replace

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In

from nearkv.device.top_scores import Selection, pack_selection
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_hdl.top.score_packer import packed_layout
from nearkv_hdl.top.selections import Selections
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.topk import k_highest

JOB = data.StructLayout({"heads": 4, "k": 32})
DESIGN = replace(
    get_design("tiny"), query_group=2, topk=TopKConfig(capacity=40, lanes=1, scan_columns=8, candidate_rows=4)
)


class JobByJob(wiring.Component):
    """Selections between the jobs of a kernel: enabled from a job's start to its last beat."""

    def __init__(self, design):
        self._selections = Selections(design)
        streams = self._selections.signature.members
        super().__init__({"i_job": In(stream.Signature(JOB)), "i": streams["i"], "o": streams["o"]})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.selections = unit = self._selections
        job, runs = Signal(JOB), Signal()
        wiring.connect(m, wiring.flipped(self.i), unit.i)
        wiring.connect(m, unit.o, wiring.flipped(self.o))
        m.d.comb += [
            *(unit.enable.eq(runs), unit.heads.eq(job.heads), unit.k.eq(job.k)),
            self.i_job.ready.eq(~runs),
        ]
        with m.If(self.i_job.valid & self.i_job.ready):
            m.d.sync += [job.eq(self.i_job.payload), runs.eq(1)]
        with m.Elif(self.o.valid & self.o.ready & self.o.payload.last):
            m.d.sync += runs.eq(0)
        return m


@pytest.mark.parametrize("bus_bytes", [8, 64])
def test_jobs_of_any_size(bus_bytes):
    design = replace(DESIGN, bus_bytes=bus_bytes)
    compiled = CompiledComponent(JobByJob(design), name=f"selections-{bus_bytes}")
    rng = np.random.default_rng(8)
    group = design.query_group
    heads, counts, k = rng.integers(1, group + 1, 12), rng.integers(1, 41, 12), rng.integers(1, 45, 12)
    heads[:2], counts[:2], k[:2] = (1, 2), (1, 40), (40, 8)
    jobs, expected, lasts = [], [], []
    for of_job, count, wanted in zip(heads.tolist(), counts.tolist(), k.tolist(), strict=True):
        tokens = np.cumsum(rng.integers(1, 1 << 20, count))
        scores = rng.integers(-2, 2, (count, group)) << rng.integers(0, 30)
        jobs.append((tokens, scores))
        chosen = np.stack([k_highest(scores[:, head], wanted) for head in range(of_job)])
        of_heads = np.take_along_axis(scores.T[:of_job], chosen, 1).astype(np.int32)
        beats = pack_selection(Selection(tokens[chosen], of_heads)).reshape(-1, bus_bytes)
        expected.append(beats)
        lasts += [0] * (len(beats) - 1) + [1]
    items = pack_words(
        score_layout(design),
        token=np.concatenate([tokens for tokens, _ in jobs]),
        scores=np.concatenate([scores for _, scores in jobs]),
        last=np.concatenate([np.arange(n) == n - 1 for n in counts]).astype(np.int64),
    )
    for stalls in (None, Stalls(seed=3, input_probability=0.3, output_probability=0.5)):
        outcome = compiled.run(
            {"i_job": pack_words(JOB, heads=heads, k=k), "i": items},
            {"o": len(lasts)},
            stalls=stalls,
            drain_cycles=100,
        )
        found = unpack_words(packed_layout(bus_bytes), outcome.outputs["o"])
        assert found["last"].tolist() == lasts
        assert not found["first_token"].any()
        got = found["data"]
        if got.ndim == 1:
            got = got.astype("<u8").view(np.uint8).reshape(-1, bus_bytes)
        assert np.array_equal(got, np.concatenate(expected))
