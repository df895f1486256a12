"""2^f by a polynomial: the core of the default exp unit."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.exp_table import (
    COEFFICIENT_FRACTION_BITS,
    EXP_FRACTION,
    EXP_MANTISSA,
    POLYNOMIALS,
)


class Exp2Polynomial(wiring.Component):
    """Mantissa of 2^f, 0 <= f < 1, by a polynomial in Horner form.

    Formula: a = c_d; a ← c_k + rhu(a·f, 16) for k = d−1 … 1; m = 2^15 + rhu(a·f, 18).
    Timing: latency 2·degree (a product register and a sum register per degree), interval 1; without
    `enable` every register holds.
    Numerics: f UQ0.16, coefficients and a UQ0.17, m UQ1.15. Each step rounds half up; nothing overflows
    (tried for every f). Largest relative error: degree 2 .2066 %, 3 .00997 %, 4 .00176 %, 5 and 6 .00152 %,
    where rounding m alone allows .00153 %; the exact bounds are in `POLYNOMIALS`. m is exactly 1 at f = 0
    and never falls as f rises: all coefficients are positive, so every step is monotonic.
    Area: one multiplier of at most 17 × 16 bits per degree, the first by a constant.
    Reset: none.

    Args:
        degree: 2 to 6.

    Members:
        enable: clock enable of every register.
        f: fraction.
        m: mantissa, `latency` enabled cycles later.
        rounded_up: the value before the last rounding lies below m; else m or above.

    Raises ValueError for another degree.

    """

    def __init__(self, degree: int = 3) -> None:
        if degree not in POLYNOMIALS:
            raise ValueError(f"degree is {degree!r}; allowed: {', '.join(map(str, POLYNOMIALS))}")
        self.degree = degree
        self.accuracy = POLYNOMIALS[degree].accuracy
        super().__init__(
            {
                "enable": In(1),
                "f": In(shape_of(EXP_FRACTION)),
                "m": Out(shape_of(EXP_MANTISSA)),
                "rounded_up": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Enabled cycles from `f` to `m`."""
        return 2 * self.degree

    @property
    def interval(self) -> int:
        """Cycles between two fractions."""
        return 1

    def elaborate(self, platform):
        m = Module()
        *lower, leading = POLYNOMIALS[self.degree].coefficients
        last = COEFFICIENT_FRACTION_BITS + EXP_FRACTION.fraction_bits - EXP_MANTISSA.fraction_bits
        steps = [(c, EXP_FRACTION.fraction_bits, COEFFICIENT_FRACTION_BITS) for c in reversed(lower)]
        steps.append((1 << EXP_MANTISSA.fraction_bits, last, EXP_MANTISSA.width))

        accumulator = Const(leading)
        fraction = self.f
        ranks = 0
        for number, (constant, dropped, width) in enumerate(steps):
            product = Signal(len(accumulator) + len(fraction), name=f"product{number}", reset_less=True)
            total = Signal(width, name=f"sum{number}", reset_less=True)
            delayed = [
                Signal(EXP_FRACTION.width, name=f"f{number}_{rank}", reset_less=True) for rank in (0, 1)
            ]
            with m.If(self.enable):
                m.d.sync += [
                    product.eq(fraction * accumulator),
                    # rhu(product, dropped): the bit below the cut is its rounding carry.
                    total.eq(constant + product[dropped:] + product[dropped - 1]),
                    delayed[0].eq(fraction),
                    delayed[1].eq(delayed[0]),
                ]
            accumulator, fraction = total, delayed[1]
            ranks += 2
        assert ranks == self.latency
        rounded_up = Signal(reset_less=True)
        with m.If(self.enable):
            m.d.sync += rounded_up.eq(product[dropped - 1])
        m.d.comb += [self.m.eq(accumulator), self.rounded_up.eq(rounded_up)]
        return m
