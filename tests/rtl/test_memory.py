"""The one on-chip memory: what a read returns, what the synthesiser is told, what is refused."""

from __future__ import annotations

import re

import pytest
from amaranth.sim import Simulator

from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.verilog import to_verilog


@pytest.mark.parametrize("latency", [1, 2])
def test_memory_reads_what_was_there_before(latency):
    memory = SyncMemory(8, 4, parts=2, latency=latency)
    assert (memory.latency, memory.interval) == (latency, 1)

    async def process(ctx):
        async def access(read_row, write_row=0, data=0, enable=0):
            ctx.set(memory.read_row, read_row)
            ctx.set(memory.read_enable, 1)
            ctx.set(memory.write_row, write_row)
            ctx.set(memory.write_data, data)
            ctx.set(memory.write_enable, enable)
            await ctx.tick()
            ctx.set(memory.write_enable, 0)

        async def settle():
            for _ in range(memory.latency - 1):
                await access(3)

        await access(1, 1, 0xAB, 0b11)
        await settle()
        assert ctx.get(memory.read_data) == 0  # the old value, though the row was written meanwhile
        await access(1, 1, 0xCD, 0b10)
        await settle()
        assert ctx.get(memory.read_data) == 0xAB
        await access(1)
        await settle()
        assert ctx.get(memory.read_data) == 0xCB  # only the upper part was written
        ctx.set(memory.read_enable, 0)
        ctx.set(memory.read_row, 0)
        await ctx.tick().repeat(3)
        assert ctx.get(memory.read_data) == 0xCB

    simulator = Simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()


@pytest.mark.parametrize(
    ("options", "attributes"),
    [
        ({}, []),
        ({"keeps_old": False}, ["no_rw_check"]),
        ({"style": "ultra"}, ["ram_style"]),
        ({"style": "block", "keeps_old": False}, ["no_rw_check", "ram_style"]),
    ],
)
def test_memory_frees_the_synthesiser_of_collisions_only_when_told(options, attributes):
    """Without no_rw_check a RAM block whose old value is undefined gets logic that gives it."""
    verilog = to_verilog(SyncMemory(8, 4, **options))
    assert re.findall(r"\(\* (\w+) = ", verilog) == attributes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0, "depth": 4}, "width is 0; allowed: from 1"),
        ({"width": 8, "depth": 1}, "depth is 1; allowed: from 2"),
        ({"width": 8, "depth": 4, "parts": 3}, "parts is 3 with width 8; allowed: a divisor"),
        ({"width": 8, "depth": 4, "latency": 3}, "latency is 3; allowed: 1, 2"),
        ({"width": 8, "depth": 4, "style": "flash"}, "style is 'flash'; allowed: auto, block"),
    ],
)
def test_memory_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        SyncMemory(**arguments)
