"""The sum l of a processing unit."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.pim.accumulators import RISE, rescaled
from nearkv_hdl.pim.weight_path import WEIGHT_ENTRY
from nearkv_hdl.spec.attention import SUM, SUM_FRACTION_BITS, WEIGHT


class TotalSum(wiring.Component):
    """Sum of weights, one per token, rescaled on the way like the accumulators.

    Formula: total = rhu(fresh ? 0 : total, rise) + rhu(m·2^11, M−n).
    Timing: `total` is complete `latency` = 2 cycles after `add`; interval 2, as the old sum is rescaled
    beside the new term (tokens are at least four cycles apart). Free-running.
    Numerics: one rounding half up per token (½ · 2^−26), one per rescaling; 48 bits hold 2^20 tokens.
    Reset: the delayed `add`; the sum is started by `fresh`.

    Members:
        weight: mantissa and M − n of the token.
        add, fresh, rise: add it; start from 0; rescale before.
        total: l.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "weight": In(WEIGHT_ENTRY),
                "add": In(1),
                "fresh": In(1),
                "rise": In(RISE.width),
                "total": Out(shape_of(SUM)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a weight to the sum that contains it: rescaling, addition."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two weights at least."""
        return 2

    def elaborate(self, platform):
        m = Module()
        total = Signal(shape_of(SUM), reset_less=True)
        old, term = Signal(shape_of(SUM), reset_less=True), Signal(shape_of(SUM), reset_less=True)
        adds = Signal()
        weight = Cat(Const(0, SUM_FRACTION_BITS - WEIGHT.fraction_bits), self.weight.mantissa, Const(0, 1))
        m.d.sync += [
            adds.eq(self.add),
            term.eq(rescaled(weight, self.weight.below)),
            old.eq(Mux(self.fresh, 0, rescaled(total, self.rise))),
        ]
        with m.If(adds):
            m.d.sync += total.eq(old + term)
        m.d.comb += self.total.eq(total)
        return m
