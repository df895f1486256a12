"""Moves the binary point of a number by a variable distance."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed

_COARSE_BITS = 16  # the last rank shifts by multiples of this, those before by 0…3 and by 0, 4, 8, 12
AMOUNT_BITS = 10


class FoldShift(wiring.Component):
    """Shifts a number to the left or right, and says if it does not fit.

    Formula: o = floor(value · 2^amount).
    Timing: latency 4 (distance, by 0…3, by 4s, by 16s), interval 1, free-running.
    Numerics: exact but for the floor; `overflow` if the result does not fit, o is then meaningless.

    Args:
        value_bits: width of the signed operand.
        result_bits: width of the signed result.

    Members:
        value: operand.
        amount: distance to the left, −2^9…2^9 − 1.
        o, overflow: result, `latency` cycles later.

    """

    def __init__(self, value_bits: int, result_bits: int) -> None:
        self.value_bits = value_bits
        self.result_bits = result_bits
        super().__init__(
            {
                "value": In(signed(value_bits)),
                "amount": In(signed(AMOUNT_BITS)),
                "o": Out(signed(result_bits)),
                "overflow": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from operand to result."""
        return 4

    @property
    def interval(self) -> int:
        """Cycles between two operands."""
        return 1

    def elaborate(self, platform):
        m = Module()
        width = self.result_bits
        # Right by `reach` leaves only the sign; left by `width` overflows unless the number is 0.
        reach = -(-self.value_bits // _COARSE_BITS) * _COARSE_BITS
        farthest = reach + width
        left = self.amount + reach
        clamped = Mux(left < 0, 0, Mux(left > farthest, farthest, left))[: farthest.bit_length()]
        distance = delayed(m, clamped, "distance")
        value = delayed(m, self.value, "operand")
        value, coarse = (
            delayed(m, value << distance[:2], "by_ones"),
            delayed(m, distance[2:], "distance_left"),
        )
        value = delayed(m, value << Cat(Const(0, 2), coarse[:2]), "by_fours")
        coarse = delayed(m, coarse[2:], "coarse")
        picked, lost = Signal.like(self.o), Signal()
        with m.Switch(coarse):
            for step in range(farthest // _COARSE_BITS + 1):
                placed = value.shift_left(step * _COARSE_BITS).shift_right(reach)
                part = placed[:width].as_signed()
                with m.Case(step):
                    m.d.comb += [picked.eq(part), lost.eq(placed != part)]
        m.d.comb += [self.o.eq(delayed(m, picked, "placed")), self.overflow.eq(delayed(m, lost, "lost"))]
        return m
