"""A multiplier whose product is aligned to a fixed point: the lane of a processing unit."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import FP16_BIAS, PRODUCT, SIGNIFICAND, WEIGHT
from nearkv_hdl.spec.formats import Format

FACTOR = Format(WEIGHT.width + 1, signed=True)  # a query significand, or a weight
# The largest left shift: both exponents 2^5, the product in units of 2^-16.
SHIFT_OFFSET = 26
# Of q·k, when both stored exponents are 0: the product in units of 2^-16, both exponents biased by 25.
QK_SHIFT = SHIFT_OFFSET - PRODUCT.fraction_bits + 2 * FP16_BIAS
SHIFT = Format(6, signed=False)  # k + 26; 63 stands for everything beyond and gives 0
_COARSE_BITS = 3  # low bits of the shift, done in the second of its two ranks


class AlignedProduct(wiring.Component):
    """Product of two significands, shifted by the exponents' sum and rounded half up.

    Formula: o = rhu(a · b, shift − 26), an exact left shift for shift < 26.
    Timing: latency 4 (operands, product, two ranks of shift), interval 1, free-running.
    Numerics: the product is exact (29 bits); one rounding half up, error at most ½ of the last place.
    Overflow cannot occur for significands of finite FP16 numbers; for a weight shift ≥ 26 holds.
    Reset: none, all registers hold data.

    Members:
        a: query significand or UQ1.15 weight, signed 17 bits.
        b: significand of a key or value, signed 12 bits.
        shift: bits to drop, plus 26.
        o: aligned product, `latency` cycles later.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "a": In(shape_of(FACTOR)),
                "b": In(shape_of(SIGNIFICAND)),
                "shift": In(SHIFT.width),
                "o": Out(shape_of(PRODUCT)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from operands to result."""
        return 4

    @property
    def interval(self) -> int:
        """Cycles between two products."""
        return 1

    def elaborate(self, platform):
        m = Module()
        product_format = FACTOR.product(SIGNIFICAND)
        # One bit more than the result needs is kept, so that rounding is an addition after the shift.
        kept = signed(product_format.width + SHIFT_OFFSET + 1)
        a = Signal.like(self.a, reset_less=True)
        b = Signal.like(self.b, reset_less=True)
        shifts = [self.shift]
        for rank in range(self.latency - 1):
            shift = Signal(SHIFT.width, name=f"shift{rank}", reset_less=True)
            m.d.sync += shift.eq(shifts[-1])
            shifts.append(shift)
        product = Signal(shape_of(product_format), reset_less=True)
        coarse = Signal(kept, reset_less=True)
        rounded = Signal(shape_of(PRODUCT), reset_less=True)
        m.d.sync += [
            a.eq(self.a),
            b.eq(self.b),
            product.eq(a * b),
            coarse.eq(
                (product << (SHIFT_OFFSET + 1)) >> Cat(Const(0, _COARSE_BITS), shifts[2][_COARSE_BITS:])
            ),
            rounded.eq(((coarse >> shifts[3][:_COARSE_BITS]) + 1) >> 1),
        ]
        m.d.comb += self.o.eq(rounded)
        return m
