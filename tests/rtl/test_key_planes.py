"""The plane store alone: codes are joined from their planes, room is counted, order is kept."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv.codec.key_block import split_planes
from nearkv_hdl.attention.key_planes import KeyPlanes
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P


def design(bus_bytes: int, lanes: int) -> DesignConfig:
    return DesignConfig(
        name="planes",
        device=KU15P,
        bus_bytes=bus_bytes,
        lanes=lanes,
        query_group=1,
        head_dims=(64,),
        clock_hz=1,
        block_tokens=16,
    )


def beats_of(codes: np.ndarray, bus_bytes: int, int4: bool) -> list[dict[str, int]]:
    high, low = split_planes(codes)
    data = high.tobytes() + (b"" if int4 else low.tobytes())
    chunks = [data[i : i + bus_bytes] for i in range(0, len(data), bus_bytes)]
    return [
        {"data": int.from_bytes(chunk, "little"), "last": index == len(chunks) - 1}
        for index, chunk in enumerate(chunks)
    ]


@pytest.mark.parametrize(("bus_bytes", "lanes"), [(8, 8), (16, 8), (8, 16)])
@pytest.mark.parametrize("formats", [(0, 0, 0), (1, 1, 1), (0, 1, 0)])
def test_codes_come_back_in_lane_beats(bus_bytes, lanes, formats):
    config = design(bus_bytes, lanes)
    planes = KeyPlanes(config)
    codes = np.random.default_rng(3).integers(-128, 128, (3, 16, 64), dtype=np.int8)
    seen: list[list[int]] = []
    complete = 0

    async def rows_complete(ctx):
        nonlocal complete
        async for _, _, row_complete in ctx.tick().sample(planes.row_complete):
            complete += row_complete

    async def source(ctx):
        for block, int4 in enumerate(formats):
            bank = block % 2
            await ctx.tick().until(~planes.known[bank])
            ctx.set(planes.key_format[bank], int4)
            ctx.set(planes.known[bank], 1)
            for beat in beats_of(codes[block], bus_bytes, bool(int4)):
                ctx.set(planes.i_keys.payload, beat)
                ctx.set(planes.i_keys.valid, 1)
                await ctx.tick().until(planes.i_keys.ready)
            ctx.set(planes.i_keys.valid, 0)

    async def lanes_side(ctx):
        for block, int4 in enumerate(formats):
            bank = block % 2
            rows, subs = planes.rows, planes.subs
            for row in range(rows):
                while complete <= block * rows + row:
                    await ctx.tick()
                for sub in range(subs):
                    ctx.set(planes.read_bank, bank)
                    ctx.set(planes.read_row, row)
                    ctx.set(planes.read_sub, sub)
                    ctx.set(planes.read_int4, int4)
                    ctx.set(planes.low_drop, sub == subs - 1 and not int4)
                    await ctx.tick()
                    ctx.set(planes.low_drop, 0)
                    await ctx.tick().repeat(planes.latency - 1)
                    seen.append([ctx.get(code) for code in planes.codes])
            ctx.set(planes.known[bank], 0)
            ctx.set(planes.release[bank], 1)
            await ctx.tick()
            ctx.set(planes.release[bank], 0)

    async def limit(ctx):
        for _ in range(20_000):
            await ctx.tick()
        raise TimeoutError("the plane store hangs")

    simulator = Simulator(planes)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source, background=True)
    simulator.add_testbench(rows_complete, background=True)
    simulator.add_testbench(limit, background=True)
    simulator.add_testbench(lanes_side)
    simulator.run()
    expected = codes.astype(int)
    for block, int4 in enumerate(formats):
        if int4:
            expected[block] = (expected[block] >> 4) * 16
    assert np.array_equal(np.array(seen).reshape(3, 16, 64), expected)


def test_a_full_queue_holds_the_bus_and_loses_nothing():
    """Nobody reads: one block's high plane and a full queue of low rows go in, and no beat more."""
    config = design(8, 8)
    planes = KeyPlanes(config)
    taken = 0

    async def source(ctx):
        nonlocal taken
        ctx.set(planes.known, 0b11)
        ctx.set(planes.i_keys.valid, 1)
        for _ in range(4 * planes.rows):
            taken += ctx.get(planes.i_keys.ready)
            await ctx.tick()
        assert ctx.get(planes.low_rows) == min(planes.rows, planes.queue_rows)

    simulator = Simulator(planes)
    simulator.add_clock(1e-6)
    simulator.add_testbench(source)
    simulator.run()
    assert taken == planes.rows + planes.queue_rows
