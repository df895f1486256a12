"""ECP5 RAM blocks with output registers: the behavioural twin, and the instances around a block's model."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import Cat, Elaboratable, Module, Signal
from amaranth.lib.memory import Memory
from amaranth.sim import Simulator

from nearkv_hdl import pdpw16kd
from nearkv_hdl.pdpw16kd import Pdpw16kd
from nearkv_hdl.verilog import to_verilog


class BlockModel(Elaboratable):
    """PDPW16KD with 36-bit ports, as FPGA-TN-02204 describes it, on one clock.

    DO0 to DO17 carry bits 18 to 35 of a word and DO18 to DO35 its bits 0 to 17: a pseudo dual-port RAM that
    Lattice Diamond generates has `.DI0(Data[0])`, `.DO0(Q[18])` and `.DO18(Q[0])`.
    """

    def __init__(self, kind: str, **ports) -> None:
        assert kind == "PDPW16KD"
        assert (ports["p_DATA_WIDTH_W"], ports["p_DATA_WIDTH_R"], ports["p_REGMODE"]) == (36, 36, "OUTREG")
        assert repr(ports["i_CLKW"]) == repr(ports["i_CLKR"]) == "(clk sync)"
        self.ports = ports

    def bus(self, name: str, width: int):
        return Cat(self.ports[f"{name}{bit}"] for bit in range(width))

    def elaborate(self, _platform):
        m = Module()
        m.submodules.words = words = Memory(shape=36, depth=512, init=[])
        write, read = words.write_port(granularity=9), words.read_port(domain="comb")
        chosen = {port: self.bus(f"i_CS{port}", 3) == 0 for port in "WR"}  # CSDECODE is 0b000 unless said
        with m.If(self.ports["i_CEW"] & chosen["W"]):
            m.d.comb += write.en.eq(self.bus("i_BE", 4))
        address = self.bus("i_ADR", 14)
        m.d.comb += [
            write.addr.eq(self.bus("i_ADW", 9)),
            write.data.eq(self.bus("i_DI", 36)),
            read.addr.eq(address[5:]),
        ]
        first, output = Signal(36), Signal(36)
        with m.If(self.ports["i_CER"] & chosen["R"]):
            m.d.sync += first.eq(read.data)
        with m.If(self.ports["i_OCER"]):
            m.d.sync += output.eq(first)
        m.d.comb += self.bus("o_DO", 36).eq(Cat(output[18:], output[:18]))
        return m


@pytest.mark.parametrize("primitive", [False, True], ids=["twin", "blocks"])
@pytest.mark.parametrize(("width", "depth"), [(1, 2), (36, 512), (70, 9)])
def test_rows_come_back_two_cycles_later(width, depth, primitive, monkeypatch):
    """Random writes and reads of other rows, with and without enables, against a list."""
    monkeypatch.setattr(pdpw16kd, "Instance", BlockModel)
    rng = np.random.default_rng(width)
    memory = Pdpw16kd(width, depth, primitive=primitive)
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
