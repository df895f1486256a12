"""The query buffer alone: banks alternate, loads wait for a release, rows come back as written."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.attention.query_buffer import QueryBuffer
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P

DESIGN = DesignConfig(
    name="buffer",
    device=KU15P,
    bus_bytes=32,
    lanes=32,
    query_group=3,
    head_dims=(64, 128),
    clock_hz=1,
    block_tokens=16,
)


def simulate(bench) -> None:
    buffer = QueryBuffer(DESIGN)

    async def limit(ctx):
        for _ in range(3000):
            await ctx.tick()
        raise TimeoutError("the query buffer hangs")

    async def body(ctx):
        await bench(ctx, buffer)

    simulator = Simulator(buffer)
    simulator.add_clock(1e-6)
    simulator.add_testbench(limit, background=True)
    simulator.add_testbench(body)
    simulator.run()


async def offer(ctx, port, payload) -> None:
    ctx.set(port.payload, payload)
    ctx.set(port.valid, 1)
    await ctx.tick().until(port.ready)
    ctx.set(port.valid, 0)


async def load(ctx, buffer: QueryBuffer, block: int, head_dim: int, codes: np.ndarray) -> None:
    command = {
        "first_token": 128 * block,
        "head_dim_index": DESIGN.head_dims.index(head_dim),
        "key_format": block % 2,
        "shift": [block % 8] * 3,
        "bias": [-block] * 3,
        "last": 0,
    }
    await offer(ctx, buffer.i_block, command)
    rows = codes.reshape(-1, DESIGN.lanes).tolist()
    for index, row in enumerate(rows):
        await offer(ctx, buffer.i_query, {"data": row, "last": index == len(rows) - 1})


async def read(ctx, buffer: QueryBuffer, bank: int, chunk: int) -> list[list[int]]:
    ctx.set(buffer.read_bank, bank)
    ctx.set(buffer.read_chunk, chunk)
    await ctx.tick().repeat(buffer.latency)
    return [[ctx.get(row[lane]) for lane in range(DESIGN.lanes)] for row in buffer.query]


@pytest.mark.parametrize("head_dim", [64, 128])
def test_rows_of_every_head_come_back_from_their_bank(head_dim):
    rng = np.random.default_rng(head_dim)
    codes = rng.integers(-127, 128, (5, 3, head_dim))

    async def bench(ctx, buffer):
        for block in range(5):
            bank = block % 2
            await load(ctx, buffer, block, head_dim, codes[block])
            await ctx.tick()
            assert (ctx.get(buffer.known) >> bank) & (ctx.get(buffer.ready) >> bank) & 1
            assert ctx.get(buffer.command[bank].first_token) == 128 * block
            assert ctx.get(buffer.command[bank].bias[2]) == -block
            for chunk in range(head_dim // DESIGN.lanes):
                expected = codes[block, :, chunk * DESIGN.lanes : (chunk + 1) * DESIGN.lanes]
                assert await read(ctx, buffer, bank, chunk) == expected.tolist()
            ctx.set(buffer.release, 1 << bank)
            await ctx.tick()
            ctx.set(buffer.release, 0)
            assert ctx.get(buffer.known) == 0

    simulate(bench)


def test_a_third_block_waits_until_a_bank_is_released():
    codes = np.random.default_rng(0).integers(-127, 128, (3, 64))

    async def bench(ctx, buffer):
        await load(ctx, buffer, 0, 64, codes)
        await load(ctx, buffer, 1, 64, codes)
        ctx.set(buffer.i_block.valid, 1)
        for _ in range(20):
            await ctx.tick()
            assert not ctx.get(buffer.i_block.ready)
        ctx.set(buffer.used, 1)
        await ctx.tick()
        ctx.set(buffer.used, 0)
        assert ctx.get(buffer.ready) == 0b10  # never again with these queries
        assert not ctx.get(buffer.i_block.ready)
        ctx.set(buffer.release, 1)
        await ctx.tick()
        ctx.set(buffer.release, 0)
        assert ctx.get(buffer.i_block.ready)

    simulate(bench)


@pytest.mark.parametrize("early", [True, False])
def test_a_misplaced_last_shows_in_its_cycle(early):
    async def bench(ctx, buffer):
        await offer(ctx, buffer.i_block, {"head_dim_index": 0})
        ctx.set(buffer.i_query.valid, 1)
        beats = DESIGN.query_beats(64)
        for beat in range(beats):
            right = beat == beats - 1
            wrong = beat == (2 if early else beats - 1)
            ctx.set(buffer.i_query.payload.last, right != wrong)
            assert ctx.get(buffer.framing_error) == wrong
            await ctx.tick()

    simulate(bench)
