"""Pairing of keys: order of the half beats, and their distance from the lane beats whatever the gaps."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.attention.key_pairs import KeyPairs
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P
from nearkv_hdl.spec.multiplier import MacVariant

LANES = 16


def design(head_dims: tuple[int, ...]) -> DesignConfig:
    return DesignConfig(
        name="pairs",
        device=KU15P,
        bus_bytes=16,
        lanes=LANES,
        query_group=1,
        head_dims=head_dims,
        clock_hz=1,
        block_tokens=16,
        variant=MacVariant.PACKED_KEYS,
    )


@pytest.mark.parametrize("head_dims", [(64,), (64, 128), (64, 128, 256)])
@pytest.mark.parametrize("gap_probability", [0.0, 0.3, 0.8])
def test_pairs_come_back_at_a_fixed_distance(head_dims, gap_probability):
    rng = np.random.default_rng(int(10 * gap_probability))
    config = design(head_dims)
    unit = KeyPairs(config)
    pairs, ends, seen = [], [], []
    cycle = 0

    async def source(ctx):
        nonlocal cycle
        for number in range(40):
            index = int(rng.integers(len(head_dims)))
            beats = head_dims[index] // LANES
            codes = rng.integers(-128, 128, (2, beats, LANES))
            pairs.append((number % 2, codes))
            for key in range(2):
                for chunk in range(beats):
                    while rng.random() < gap_probability:
                        ctx.set(unit.i_valid, 0)
                        await ctx.tick()
                        cycle += 1
                    ctx.set(unit.i_valid, 1)
                    ctx.set(unit.i_beat.first, chunk == 0)
                    ctx.set(unit.i_beat.last, chunk == beats - 1)
                    ctx.set(unit.i_beat.block_end, key)
                    ctx.set(unit.i_beat.bank, number % 2)
                    ctx.set(unit.i_beat.chunk, chunk)
                    ctx.set(unit.i_beat.head_dim_index, index)
                    for lane in range(LANES):
                        ctx.set(unit.codes[lane], int(codes[key, chunk, lane]))
                    if key == 1 and chunk == beats - 1:
                        ends.append(cycle)
                    await ctx.tick()
                    cycle += 1
        ctx.set(unit.i_valid, 0)
        await ctx.tick().repeat(unit.latency + 2)

    async def sink(ctx):
        previous, number = None, 0
        async for _ in ctx.tick():
            pass_on = None
            if previous is not None:
                codes = [[ctx.get(code) for code in row] for row in unit.o_codes]
                seen.append((number, *previous, codes))
            if ctx.get(unit.o_valid):
                beat = unit.o_beat
                pass_on = tuple(
                    ctx.get(field)
                    for field in (beat.first, beat.last, beat.block_end, beat.bank, beat.chunk, beat.upper)
                )
            previous = pass_on
            number += 1

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source)
    simulator.add_testbench(sink, background=True)
    simulator.run()

    at = 0
    for (bank, codes), end in zip(pairs, ends, strict=True):
        beats = codes.shape[1]
        for half in range(2 * beats):
            number, first, last, block_end, seen_bank, chunk, upper, rows = seen[at]
            assert (first, last) == (half == 0, half == 2 * beats - 1)
            assert (block_end, seen_bank, chunk, upper) == (1, bank, half // 2, half % 2)
            expected = codes[:, half // 2, upper * LANES // 2 : (upper + 1) * LANES // 2]
            assert rows == expected.tolist()
            # In number, the edge after the first cycle is 0: codes of the last half beat at end + latency.
            assert number + 1 - end == unit.latency - (2 * beats - 1 - half)
            at += 1
    assert at == len(seen)
