"""The behavioural twin of ECP5 RAM blocks with output registers, and the blocks' instances."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.pdpw16kd import Pdpw16kd
from nearkv_hdl.verilog import to_verilog


@pytest.mark.parametrize(("width", "depth"), [(1, 2), (36, 512), (70, 9)])
def test_rows_come_back_two_cycles_later(width, depth):
    """Random writes and reads of other rows, with and without enables, against a list."""
    rng = np.random.default_rng(width)
    memory = Pdpw16kd(width, depth)
    rows = [0] * depth
    pipeline = [0, 0]  # memory's register, output register

    async def bench(ctx):
        for _ in range(300):
            write, read = (int(row) for row in rng.choice(depth, 2, replace=False))
            value = int.from_bytes(rng.bytes(16), "little") % (1 << width)
            writes, reads = (bool(flag) for flag in rng.integers(0, 2, 2))
            ctx.set(memory.write_row, write)
            ctx.set(memory.write_data, value)
            ctx.set(memory.write_enable, writes)
            ctx.set(memory.read_row, read)
            ctx.set(memory.read_enable, reads)
            await ctx.tick()
            if reads:
                pipeline[:] = [rows[read], pipeline[0]]
            if writes:
                rows[write] = value
            assert ctx.get(memory.read_data) == pipeline[1]

    simulator = Simulator(memory)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert (memory.latency, memory.interval) == (2, 1)


def test_the_instances_use_the_output_register_and_cover_the_width():
    verilog = to_verilog(Pdpw16kd(70, 256, primitive=True))
    assert verilog.count("PDPW16KD #(") == 2
    assert verilog.count('.REGMODE("OUTREG")') == 2
    assert verilog.count(".CLKR(clk)") == verilog.count(".CLKW(clk)") == 2
    assert "always" not in verilog
    assert "PDPW16KD" not in to_verilog(Pdpw16kd(70, 256))


@pytest.mark.parametrize("depth", [1, 513])
def test_depths_a_block_does_not_have_are_refused(depth):
    with pytest.raises(ValueError, match=f"depth is {depth}; allowed: 2 to 512"):
        Pdpw16kd(8, depth)
