"""The ECP5 multiplier block: its behavioural twin, and the instance around a model of the block."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal
from amaranth.sim import Simulator

from nearkv_hdl.arith import mult18x18d
from nearkv_hdl.arith.mult18x18d import Mult18x18d
from nearkv_hdl.verilog import to_verilog


class BlockModel(Elaboratable):
    """MULT18X18D, as FPGA-TN-02205 describes it: operands from A and B, registers where a clock is named."""

    def __init__(self, kind: str, **ports) -> None:
        assert kind == "MULT18X18D"
        self.ports = ports
        assert repr(ports["i_CLK0"]) == "(clk sync)"
        for name in ("SOURCEA", "SOURCEB", *(f"C{bit}" for bit in range(18))):
            assert repr(ports[f"i_{name}"]) == repr(Const(0))

    def register(self, m, stage: str, value):
        """`value` behind the stage's registers, if its parameters name clock, enable and reset 0."""
        named = [self.ports.get(f"p_REG_{stage}_{what}") for what in ("CLK", "CE", "RST")]
        if named == [None] * 3:
            return value
        assert named == ["CLK0", "CE0", "RST0"]
        output = Signal(value.shape())
        with m.If(self.ports["i_RST0"]):
            m.d.sync += output.eq(0)
        with m.Elif(self.ports["i_CE0"]):
            m.d.sync += output.eq(value)
        return output

    def elaborate(self, _platform):
        m = Module()
        operands = []
        for name in "AB":
            bits = Cat(self.ports[f"i_{name}{bit}"] for bit in range(18))
            is_signed = self.ports[f"i_SIGNED{name}"]
            wide = Cat(bits, Mux(is_signed, bits[-1], 0)).as_signed()
            operands.append(self.register(m, f"INPUT{name}", wide))
        product = self.register(m, "PIPELINE", (operands[0] * operands[1])[:36])
        m.d.comb += Cat(self.ports[f"o_P{bit}"] for bit in range(36)).eq(self.register(m, "OUTPUT", product))
        return m


@pytest.fixture(params=[False, True], ids=["twin", "block"])
def primitive(request, monkeypatch) -> bool:
    monkeypatch.setattr(mult18x18d, "Instance", BlockModel)
    return request.param


def products(a_bits: int, b_bits: int, pairs: list[tuple[int, int]], primitive: bool) -> list[int]:
    unit = Mult18x18d(a_bits, b_bits, primitive=primitive)
    seen = []

    async def bench(ctx):
        for a, b in [*pairs, *[(0, 0)] * unit.latency]:
            ctx.set(unit.a, a)
            ctx.set(unit.b, b)
            await ctx.tick()
            seen.append(ctx.get(unit.o))

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen[unit.latency - 1 :][: len(pairs)]


def test_every_product_of_small_numbers_comes_three_cycles_later(primitive):
    assert (Mult18x18d(3, 4).latency, Mult18x18d(3, 4).interval) == (3, 1)
    pairs = [(a, b) for a in range(-4, 4) for b in range(-8, 8)]
    assert products(3, 4, pairs, primitive) == [a * b for a, b in pairs]


def test_full_width_corners_and_random(primitive):
    rng = np.random.default_rng(1)
    corners = [-(1 << 17), -1, 0, 1, (1 << 17) - 1]
    pairs = [(a, b) for a in corners for b in corners]
    pairs += rng.integers(-(1 << 17), 1 << 17, (100, 2)).tolist()
    assert products(18, 18, pairs, primitive) == [a * b for a, b in pairs]


def test_the_instance_uses_every_register_and_only_the_instance_multiplies():
    verilog = to_verilog(Mult18x18d(8, 8, primitive=True))
    assert verilog.count("MULT18X18D #(") == 1
    for stage in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT"):
        for what, source in (("CLK", "CLK0"), ("CE", "CE0"), ("RST", "RST0")):
            assert f'.REG_{stage}_{what}("{source}")' in verilog
    assert ".CLK0(clk)" in verilog
    assert ".SIGNEDA(1'h1)" in verilog
    assert "always" not in verilog
    assert "MULT18X18D" not in to_verilog(Mult18x18d(8, 8))


@pytest.mark.parametrize(("a_bits", "b_bits", "message"), [(19, 8, "a_bits is 19"), (8, 1, "b_bits is 1")])
def test_widths_the_block_does_not_have_are_refused(a_bits, b_bits, message):
    with pytest.raises(ValueError, match=f"{message}; allowed: 2 to 18"):
        Mult18x18d(a_bits, b_bits)
