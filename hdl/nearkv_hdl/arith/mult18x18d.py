"""The 18 by 18 multiplier block of Lattice ECP5, with all its register ranks."""

from __future__ import annotations

from amaranth.hdl import ClockSignal, Const, Instance, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed
from nearkv_hdl.spec.multiplier import MULT18X18D_BITS
from nearkv_hdl.spec.scorer_pipeline import MULT18X18D_RANKS

_BITS = MULT18X18D_BITS
# Each stage by name: which of the block's clocks, enables and resets its registers use.
_REGISTERS = ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")


class Mult18x18d(wiring.Component):
    """Product of two signed numbers in one MULT18X18D with input, pipeline and output registers in use.

    Formula: o = a·b.
    Timing: latency 3, interval 1, free-running, no reset.
    Numerics: exact; o is as wide as both operands together.

    Yosys neither packs registers into this block nor has a simulation model of it. With `primitive` the block
    is instantiated; without, three register ranks of the same behaviour stand for it, which every simulator
    and every family understands. The assumption, from the block's description in FPGA-TN-02205 and not
    checked by a simulation of the block itself: with REG_INPUTA, REG_INPUTB, REG_PIPELINE and REG_OUTPUT on
    CLK0, CE0 high, RST0 low, SIGNEDA = SIGNEDB = 1 and SOURCEA = SOURCEB = 0, P = A·B three edges later.

    Args:
        a_bits, b_bits: width of the operands, 2 to 18.
        primitive: instantiate the block.

    Members:
        a, b: signed operands.
        o: product, `latency` cycles later.

    Raises ValueError for a width outside its range.

    """

    def __init__(self, a_bits: int, b_bits: int, *, primitive: bool = False) -> None:
        for name, bits in (("a_bits", a_bits), ("b_bits", b_bits)):
            if not 2 <= bits <= _BITS:
                raise ValueError(f"{name} is {bits}; allowed: 2 to {_BITS}")
        self.primitive = primitive
        super().__init__(
            {"a": In(signed(a_bits)), "b": In(signed(b_bits)), "o": Out(signed(a_bits + b_bits))}
        )

    @property
    def latency(self) -> int:
        """Cycles from operands to product."""
        return MULT18X18D_RANKS

    @property
    def interval(self) -> int:
        """Cycles between two products."""
        return 1

    def elaborate(self, platform):
        m = Module()
        if not self.primitive:
            product = self.a * self.b  # multiplied at the entry: fewer registers to simulate, the same ports
            for rank in range(self.latency):
                product = delayed(m, product, f"product{rank}")
            m.d.comb += self.o.eq(product)
            return m
        wide_a, wide_b = Signal(signed(_BITS)), Signal(signed(_BITS))
        product = Signal(2 * _BITS)
        m.d.comb += [wide_a.eq(self.a), wide_b.eq(self.b), self.o.eq(product)]
        ports: dict[str, object] = {"i_CLK0": ClockSignal(), "i_CE0": Const(1), "i_RST0": Const(0)}
        for stage in _REGISTERS:
            ports |= {f"p_REG_{stage}_CLK": "CLK0", f"p_REG_{stage}_CE": "CE0", f"p_REG_{stage}_RST": "RST0"}
        for unused in range(1, 4):
            ports |= {f"i_CLK{unused}": Const(0), f"i_CE{unused}": Const(0), f"i_RST{unused}": Const(0)}
        for bit in range(_BITS):
            ports |= {f"i_A{bit}": wide_a[bit], f"i_B{bit}": wide_b[bit], f"i_C{bit}": Const(0)}
        ports |= {f"i_{name}": Const(1) for name in ("SIGNEDA", "SIGNEDB")}
        ports |= {f"i_{name}": Const(0) for name in ("SOURCEA", "SOURCEB")}
        ports |= {f"o_P{bit}": product[bit] for bit in range(2 * _BITS)}
        m.submodules.block = Instance("MULT18X18D", **ports)
        return m
