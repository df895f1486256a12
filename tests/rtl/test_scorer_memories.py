"""No score depends on what a memory gives of a row in the cycle of its write: no such read is used."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from nearkv_hdl.attention import key_planes
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.scorer_job import random_job, read_scores


class CollidingMemory(wiring.Component):
    """SyncMemory of latency 2, but a row that is read in the cycle of its write comes back inverted."""

    def __init__(self, width: int, depth: int) -> None:
        self._rows = SyncMemory(width, depth, latency=2)
        self.latency = self._rows.latency
        row = range(depth)
        super().__init__(
            {
                "write_row": In(row),
                "write_data": In(width),
                "write_enable": In(1),
                "read_row": In(row),
                "read_enable": In(1),
                "read_data": Out(width),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.rows = rows = self._rows
        for name in ("write_row", "write_data", "write_enable", "read_row", "read_enable"):
            m.d.comb += getattr(rows, name).eq(getattr(self, name))
        collided = [Signal(name=f"collided{rank}") for rank in range(self.latency)]
        with m.If(self.read_enable):
            now = self.write_enable & (self.write_row == self.read_row)
            m.d.sync += [rank.eq(before) for rank, before in zip(collided, [now, *collided], strict=False)]
        m.d.comb += self.read_data.eq(Mux(collided[-1], ~rows.read_data, rows.read_data))
        return m


# One and several lane beats a row; blocks that are shorter than the pipeline behind them.
SHAPES = {
    "a row a beat": {"bus_bytes": 16, "lanes": 32, "block_tokens": 4, "variant": MacVariant.PLAIN},
    "a row eight beats": {"bus_bytes": 16, "lanes": 4, "block_tokens": 4, "variant": MacVariant.PACKED_KEYS},
    "longer blocks": {"bus_bytes": 16, "lanes": 16, "block_tokens": 16, "head_dims": (64, 128)},
}


@cache
def compiled(name: str) -> tuple[DesignConfig, CompiledComponent]:
    parameters = {"name": "collisions", "device": KU15P, "query_group": 1, "head_dims": (64,), "clock_hz": 1}
    design = DesignConfig(**parameters | SHAPES[name])
    with patch.object(key_planes, "_row_memory", lambda _, width, rows, __: CollidingMemory(width, rows)):
        return design, CompiledComponent(Scorer(design), name=f"colliding_{design.lanes}")


@pytest.mark.parametrize("key_formats", [(KeyFormat.INT8,), (KeyFormat.INT4,), tuple(KeyFormat)])
@pytest.mark.parametrize("name", SHAPES)
def test_scores_use_no_row_that_is_being_written(name, key_formats):
    """At full rate, and with the source, the queries or the sink as what is waited for."""
    rng = np.random.default_rng(len(key_formats))
    design, scorer = compiled(name)
    pauses = [{}, {"i_keys": 0.5}, {"i_query": 0.7}, {"o_scores": 0.8}, {"i_keys": 0.3, "o_scores": 0.3}]
    for trial, per_port in enumerate(pauses):
        job = random_job(design, 60, rng, key_formats=key_formats)
        tokens = len(job.codes) * design.block_tokens
        stalls = Stalls(trial, 0.0, 0.0, per_port=per_port)
        result = scorer.run(job.input_words(design), {"o_scores": tokens}, stalls=stalls, drain_cycles=64)
        scores = read_scores(design, result.outputs["o_scores"])[1]
        np.testing.assert_array_equal(scores, job.expected_scores(design))


def test_the_memory_inverts_what_collides():
    memory = CollidingMemory(4, 2)
    seen = []

    async def bench(ctx):
        ctx.set(memory.read_enable, 1)
        for write, row in ((1, 0), (1, 1), (0, 1), (0, 1), (0, 0)):
            ctx.set(memory.write_enable, write)
            ctx.set(memory.write_row, 1)
            ctx.set(memory.write_data, 0b0101)
            ctx.set(memory.read_row, row)
            await ctx.tick()
            seen.append(ctx.get(memory.read_data))

    simulator = Simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen == [0, 0, 0b1010, 0b0101, 0b0101]
