"""PIM devices: a reset in mid-job, a dead source, a wrong `last`, and jobs that follow without a reset."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.commands import row_layout
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_hdl.stream.with_reset import WithReset
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, Stalls
from nearkv_sim.pim_job import PimJob, random_job

# Two units, and a port through which the other group's partials enter.
DESIGN = replace(get_pim_design("tiny_pim"), name="tiny_pim_half", rtl_levels=1)
SETTLE_CYCLES = 2  # the reset's cycle, and one more
DRAIN_CYCLES = 100


@cache
def compiled() -> CompiledComponent:
    return CompiledComponent(WithReset(PimDevice(DESIGN)), name="reset_pim_device", flatten=False)


def job_of(seed: int, merge: Merge, *, heads: int = 3, unit_tokens: int = 5) -> PimJob:
    rng = np.random.default_rng(seed)
    return random_job(DESIGN, heads=heads, unit_tokens=unit_tokens, merge=merge, rng=rng)


def check(job: PimJob, *, reset: bool, error: bool = False, stalls: Stalls | None = None) -> None:
    """Run a whole job behind whatever came before."""
    words, gaps = job.inputs, {}
    if reset:
        gaps = {name: SETTLE_CYCLES * (np.arange(len(beats)) == 0) for name, beats in words.items()}
        words = {**words, "i_reset": np.zeros((1, 1), np.uint32)}
    beats = {name: len(expected) for name, expected in job.outputs.items()}
    result = compiled().run(words, beats, gaps=gaps, stalls=stalls, drain_cycles=DRAIN_CYCLES)
    for name, expected in job.outputs.items():
        np.testing.assert_array_equal(result.outputs[name], expected, err_msg=name)
    assert result.signals["o_error"] == error


# Commands, row beats and other groups' beats that come before the reset. A query has 4 beats, head 0's keys
# and values 20 (FP16), head 1's 10 (INT8); its keys are scored before head 0's values are added.
BROKEN_OFF = {
    "query": (1, 2, 0),
    "keys": (2, 4 + 7, 0),
    "maximum without the other group's": (3, 24, 0),
    "maximum not taken": (3, 24, 1),
    "next keys, INT8": (5, 28 + 3, 1),
    "values": (7, 38 + 9, 1),
    "sums": (7, 38 + 20, 1),
    "result without the other group's": (8, 38 + 20, 1),
}


@pytest.mark.parametrize("merge", list(Merge))
@pytest.mark.parametrize("where", BROKEN_OFF)
def test_a_reset_in_mid_job_is_a_new_start(where, merge):
    """Whatever is left half done, the next jobs, of both merges, are right."""
    first, *others = (job_of(seed, kind) for seed, kind in enumerate((merge, *Merge)))
    counts = dict(zip(("i_command", "i_rows", "i_level"), BROKEN_OFF[where], strict=True))
    part = {
        name: words[: counts[prefix]]
        for name, words in first.inputs.items()
        for prefix in counts
        if name.startswith(prefix)
    }
    wrong = part["i_rows_0"].copy()  # an infinity, which raises a flag and spoils all scores
    wrong[0, 0] = 0x7C00
    compiled().run({**part, "i_rows_0": wrong}, {}, drain_cycles=0)
    check(others[0], reset=True)
    check(others[1], reset=False, stalls=Stalls(seed=3))


def test_jobs_follow_each_other_without_a_reset():
    """Both merges in turn, of one token a unit up to a whole block, with pauses and at full rate."""
    compiled().reset()
    for seed in range(12):
        sizes = {"heads": 1 + seed % 4, "unit_tokens": (1, 3, DESIGN.block_tokens)[seed % 3]}
        stalls = Stalls(seed, 0.4, 0.4) if seed % 2 else None
        check(job_of(seed, list(Merge)[seed // 2 % 2], **sizes), reset=False, stalls=stalls)


@pytest.mark.parametrize("stream", ["i_command_1", "i_rows_0", "i_level1_1"])
def test_a_source_that_dies_is_told_and_a_reset_is_a_new_start(stream):
    job = job_of(1, Merge.EXACT)
    beats = {name: len(expected) for name, expected in job.outputs.items()}
    dead = {**job.inputs, stream: job.inputs[stream][:-1]}
    with pytest.raises(CosimDeadlock, match="o_output"):
        compiled().run(dead, beats, max_idle_cycles=300)
    check(job, reset=True)


@pytest.mark.parametrize("beat", [1, -1])
def test_a_wrong_last_is_flagged_and_spoils_no_result(beat):
    """Counted lengths win: neither this job's results nor the next one's change."""
    compiled().reset()
    job = job_of(2, Merge.EXACT)
    words = job.inputs["i_rows_1"].copy()
    last = row_layout(DESIGN)["last"].offset
    words[beat, last // 32] ^= 1 << last % 32
    check(replace(job, inputs={**job.inputs, "i_rows_1": words}), reset=False, error=True)
    check(job_of(3, Merge.EXPONENTIAL), reset=False, error=True)
    check(job_of(4, Merge.EXACT), reset=True)
