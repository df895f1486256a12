"""The dot product unit: chunks with gaps between them, extremes, latency."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.attention.dot_product import DotProduct
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P


def design(query_bits: int = 8) -> DesignConfig:
    return DesignConfig(
        name="dot",
        device=KU15P,
        bus_bytes=8,
        lanes=8,
        query_group=1,
        head_dims=(64, 128),
        clock_hz=1,
        query_bits=query_bits,
        block_tokens=16,
    )


def outputs(config: DesignConfig, beats: list[tuple[np.ndarray, np.ndarray, bool, bool]]) -> list[int]:
    """Value of `o` in the cycle `latency` after each beat (codes, query, valid, first)."""
    unit = DotProduct(config)
    zero = np.zeros(config.lanes, int)
    seen = []

    async def bench(ctx):
        for codes, query, valid, first in [*beats, *[(zero, zero, False, False)] * unit.latency]:
            for lane in range(config.lanes):
                ctx.set(unit.codes[lane], int(codes[lane]))
                ctx.set(unit.query[lane], int(query[lane]))
            ctx.set(unit.valid, valid)
            ctx.set(unit.first, first)
            await ctx.tick()
            seen.append(ctx.get(unit.o))

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen[unit.latency - 1 :][: len(beats)]


def test_two_chunks_by_hand():
    one, two = np.full(8, 1), np.full(8, 2)
    assert outputs(design(), [(one, two, True, True), (two, two, True, False)]) == [16, 48]


@pytest.mark.parametrize("query_bits", [8, 12])
def test_gaps_within_a_token_leave_its_sum_alone(query_bits):
    """Random tokens of random chunk counts; between the beats lie cycles full of garbage without valid."""
    rng = np.random.default_rng(query_bits)
    config = design(query_bits)
    largest = config.query_code.max
    beats, expected = [], []
    for token in range(40):
        total = 0
        for chunk in range(int(rng.integers(1, 17))):
            for _ in range(int(rng.integers(0, 3))):
                beats.append(
                    (rng.integers(-128, 128, 8), rng.integers(-largest, largest + 1, 8), False, True)
                )
                expected.append(None)
            codes = np.full(8, -128) if token == 0 else rng.integers(-128, 128, 8)
            query = np.full(8, -largest) if token == 0 else rng.integers(-largest, largest + 1, 8)
            total += int(codes @ query)
            beats.append((codes, query, True, chunk == 0))
            expected.append(total)
    seen = outputs(config, beats)
    assert [s for s, e in zip(seen, expected, strict=True) if e is not None] == [
        e for e in expected if e is not None
    ]


def test_latency_and_width_are_composed():
    unit = DotProduct(design())
    assert (unit.latency, unit.interval) == (5, 1)
    assert len(unit.o) == design().dot.width == 8 + 8 + 7
