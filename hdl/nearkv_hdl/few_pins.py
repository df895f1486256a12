"""A component behind few pins, for place and route of what has more ports than a package has balls."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed
from nearkv_hdl.verilog import flat_ports

_FAN_IN = 4  # bits of one XOR between two registers: a LUT of every family


class FewPins(wiring.Component):
    """Inputs from a shift register, outputs into a pipelined XOR: every path of the component stays in place.

    Formula: input bits of `component` come from one shift register that takes `i` every cycle; `o` is the
    XOR of all its output bits, registered, then reduced by four a rank.
    Timing: free-running. All paths from and to the ports of the component begin and end in registers, as
    they do between registered neighbours on a chip.
    Numerics: none.

    Args:
        component: what is to be placed; it keeps its clock and reset.

    Members:
        i: next bit of the shift register.
        o: XOR of all output bits.

    """

    def __init__(self, component: wiring.Component) -> None:
        self._component = component
        super().__init__({"i": In(1), "o": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.component = self._component
        ports = flat_ports(self._component).values()
        inputs = Cat(value for value, direction in ports if direction.name == "Input")
        outputs = [bit for value, direction in ports if direction.name == "Output" for bit in value]
        shift = Signal(len(inputs), reset_less=True)
        m.d.sync += shift.eq(Cat(self.i, shift))
        m.d.comb += inputs.eq(shift)
        level = [delayed(m, bit, f"out{index}") for index, bit in enumerate(outputs)]
        while len(level) > 1:
            groups = [Cat(level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
            level = [delayed(m, group.xor(), f"xor{len(level)}_{i}") for i, group in enumerate(groups)]
        m.d.comb += self.o.eq(level[0])
        return m
