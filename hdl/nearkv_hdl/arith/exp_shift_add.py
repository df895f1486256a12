"""2^f by shifts and additions only, as a CORDIC unit would."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.exp_table import EXP_FRACTION, EXP_MANTISSA, SHIFT_ADDS


def signed_digits(number: int) -> list[tuple[int, int]]:
    """(place, sign) of the shortest sum of signed powers of two (canonical signed digits)."""
    digits = []
    place = 0
    while number:
        if number & 1:
            sign = 2 - (number & 3)  # +1 before a 0, −1 before a 1
            digits.append((place, sign))
            number -= sign
        number >>= 1
        place += 1
    return digits


class Exp2ShiftAdd(wiring.Component):
    """Mantissa of 2^f, 0 <= f < 1, by pseudo-multiplication.

    Formula: for i = 1 … `factors`: if f >= log2(1 + 2^−i), subtract that from f and multiply y by 1 + 2^−i,
    which is a shift and an addition. What is left of f, times ln 2, is z < 2^(1 − factors), and
    y·2^f = y·(1 + z) to within z²/2; the binary digits of z are the last factors, each added from the same y.
    Timing: latency digits + 2 (a rank per factor, one for z, one per digit), interval 1; without `enable`
    every register holds. A factor's rank holds two additions one after the other, a digit's one.
    Numerics: f UQ0.16, m UQ1.15; guard bits, constants and biases in `SHIFT_ADDS`. Shifts truncate. Largest
    relative error .166 %, .0961 %, .0109 %, .00186 % for 10, 12, 14 and 18 digits; exact at 0, never falls.
    Area: no multiplier and no table: three additions per factor, one per digit.
    Reset: none.

    Args:
        digits: 10, 12, 14 or 18.

    Members:
        enable: clock enable of every register.
        f: fraction.
        m: mantissa, `latency` enabled cycles later.
        rounded_up: the value before rounding lies below m, as far as the guard bits tell; 0 without any.

    Raises ValueError for another number of digits.

    """

    def __init__(self, digits: int = 14) -> None:
        if digits not in SHIFT_ADDS:
            raise ValueError(f"digits is {digits!r}; allowed: {', '.join(map(str, SHIFT_ADDS))}")
        self.constants = SHIFT_ADDS[digits]
        self.accuracy = self.constants.accuracy
        super().__init__(
            {
                "enable": In(1),
                "f": In(shape_of(EXP_FRACTION)),
                "m": Out(shape_of(EXP_MANTISSA)),
                "rounded_up": Out(1),
            }
        )

    @property
    def _rows(self) -> range:
        """Weights of the digits of z: 2^−i."""
        return range(self.constants.factors, self.constants.digits + 1)

    @property
    def latency(self) -> int:
        """Enabled cycles from `f` to `m`."""
        return self.constants.digits + 2

    @property
    def interval(self) -> int:
        """Cycles between two fractions."""
        return 1

    def elaborate(self, platform):
        m = Module()
        c = self.constants
        one = 1 << (EXP_MANTISSA.fraction_bits + c.mantissa_guard)
        y_width = EXP_MANTISSA.width + c.mantissa_guard
        ranks = 0

        def rank(name: str, width: int, value) -> Signal:
            register = Signal(width, name=f"{name}{ranks}", reset_less=True)
            with m.If(self.enable):
                m.d.sync += register.eq(value)
            return register

        left = Cat(Const(0, c.residual_guard), self.f)
        start = one + c.start_bias
        y = Const(start, y_width)
        for i, logarithm in enumerate(c.logarithms, start=1):
            ranks += 1
            difference = Signal(len(left) + 1, name=f"difference{i}")
            m.d.comb += difference.eq(left - logarithm)
            taken = ~difference[-1]
            # What is left is below the logarithm just tried, or below the next power of two of it.
            left = rank("left", self._left_bits(i), Mux(taken, difference[:-1], left))
            # The first product is one of two constants.
            product = Mux(taken, start + (start >> 1), start) if i == 1 else y + Mux(taken, y >> i, 0)
            y = rank("y", y_width, product)

        ranks += 1
        scaled = Const(1 << (c.ln2_bits - 1))  # half a unit, to round
        for place, sign in signed_digits(c.ln2):
            scaled = scaled + (left << place) if sign > 0 else scaled - (left << place)
        z_dropped = c.ln2_bits + EXP_FRACTION.width + c.residual_guard - c.digits
        z_bits = len(self._rows)
        z = rank("z", z_bits, (scaled >> z_dropped)[:z_bits])
        y = total = rank("y", y_width, y)

        for i in self._rows:
            ranks += 1
            addend = Mux(z[-1], y >> i, 0)
            if i == c.digits:
                addend = addend + c.end_bias
            total = rank("total", y_width, total + addend)
            if i != c.digits:
                z = rank("z", len(z) - 1, z[:-1])
                y = rank("y", y_width, y)
        assert ranks == self.latency
        m.d.comb += self.m.eq(total[c.mantissa_guard :])
        if c.mantissa_guard:
            # The biases stand for half a unit, so a fraction below it was rounded up.
            m.d.comb += self.rounded_up.eq(~total[c.mantissa_guard - 1])
        return m

    def _left_bits(self, i: int) -> int:
        """Bits of what is left of the largest f after i factors."""
        largest = ((1 << EXP_FRACTION.width) - 1) << self.constants.residual_guard
        bounds = [largest]
        for logarithm in self.constants.logarithms[:i]:
            bounds.append(max(logarithm - 1, bounds[-1] - logarithm))
        return bounds[-1].bit_length()
