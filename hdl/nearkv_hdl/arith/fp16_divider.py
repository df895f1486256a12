"""Quotient of two integers, correctly rounded to FP16."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.ranks import Ranks
from nearkv_hdl.spec.attention import (
    FP16_BIAS,
    FP16_BITS,
    FP16_EXPONENT_NAN,
    FP16_FRACTION_BITS,
    QUOTIENT_FRACTION_BITS,
    SUM,
    VALUE_EXPONENT,
)

_QUOTIENT_BITS = QUOTIENT_FRACTION_BITS + 1
_SHORTEST_QUOTIENT = QUOTIENT_FRACTION_BITS  # both operands are normalised, so the quotient exceeds ½
_MAX_DROP = QUOTIENT_FRACTION_BITS + 3  # beyond it nothing is kept and nothing reaches a half
_UNIT = signed(8)  # exponent of the quotient's last bit: −13 ± 47 from the shifts, and E_V


class Fp16Divider(wiring.Component):
    """numerator · 2^exponent / denominator as FP16, rounded once, to nearest even.

    Formula: both operands are shifted to a leading one, 14 restoring steps give the quotient's leading bits,
    a non-zero remainder counts as a sticky bit, and one rounding at the result's own last place
    (2^−24 for subnormals) makes FP16.
    Timing: latency 20 (magnitude, lengths, alignment, 14 steps, cut, rounding, packing), interval 1, all
    registers under `enable`.
    Numerics: correctly rounded for every operand, subnormal results included; beyond 65,504 + ½ ulp Inf
    with the numerator's sign; 0 · 2^e / x = +0; a denominator of 0 gives +0 (a job without tokens).
    Reset: none, all registers hold data.

    Members:
        enable: clock enable of every register.
        numerator, denominator: signed 48-bit integers, the denominator at least 0.
        exponent: E_V.
        o: FP16 bits, `latency` cycles later.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "enable": In(1),
                "numerator": In(shape_of(SUM)),
                "denominator": In(shape_of(SUM)),
                "exponent": In(shape_of(VALUE_EXPONENT)),
                "o": Out(FP16_BITS),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from operands to quotient."""
        return 3 + _QUOTIENT_BITS + 3

    @property
    def interval(self) -> int:
        """Cycles between two divisions."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rank = Ranks(m, self.enable)

        at = rank(
            n=abs(self.numerator)[: SUM.width],
            d=self.denominator.as_unsigned(),
            e=self.exponent,
            negative=self.numerator < 0,
            zero=(self.numerator == 0) | (self.denominator == 0),
        )
        at = rank(**at, n_shift=_leading_zeros(at["n"]), d_shift=_leading_zeros(at["d"]))
        unit = Signal(_UNIT)
        m.d.comb += unit.eq(at["e"] + at["d_shift"] - at["n_shift"] - QUOTIENT_FRACTION_BITS)
        at = rank(
            rest=Cat((at["n"] << at["n_shift"])[: SUM.width], Const(0, 1)),
            d=(at["d"] << at["d_shift"])[: SUM.width],
            unit=unit,
            negative=at["negative"],
            zero=at["zero"],
        )
        quotient = Const(0, 0)
        for _ in range(_QUOTIENT_BITS):
            fits = at["rest"] >= at["d"]
            rest = Cat(Const(0, 1), (at["rest"] - Mux(fits, at["d"], 0))[: SUM.width])
            at = rank(**at | {"rest": rest, "q": Cat(fits, quotient)})
            quotient = at["q"]

        # The last place kept: 11 bits of a normal result, 2^−24 of a subnormal one.
        normal_lsb, lsb = Signal(_UNIT), Signal(_UNIT)
        drop = Signal(range(_MAX_DROP + 1))
        distance = Signal(_UNIT)
        length = _SHORTEST_QUOTIENT + quotient[-1]
        m.d.comb += [
            normal_lsb.eq(length + at["unit"] - (FP16_FRACTION_BITS + 1)),
            lsb.eq(Mux(normal_lsb < 1 - FP16_BIAS, 1 - FP16_BIAS, normal_lsb)),
            distance.eq(lsb - at["unit"]),
            drop.eq(Mux(distance > _MAX_DROP, _MAX_DROP, distance)),
        ]
        at = rank(
            doubled=Cat(at["rest"].any(), quotient),
            drop=drop,
            lsb=lsb,
            negative=at["negative"],
            zero=at["zero"],
        )
        kept = (at["doubled"] >> (at["drop"] + 1))[: FP16_FRACTION_BITS + 1]
        half = (at["doubled"] >> at["drop"])[0]
        below_half = (at["doubled"] & ((Const(1, 1) << at["drop"]) - 1).as_unsigned()).any()
        at = rank(
            kept=kept + (half & (below_half | kept[0])),
            lsb=at["lsb"],
            negative=at["negative"],
            zero=at["zero"],
        )
        # Adding the exponent field carries: a significand of 2048 becomes 1024 of the next binade.
        field = Signal(signed(8))
        bits = Signal(signed(FP16_BITS + 3))
        infinity = FP16_EXPONENT_NAN << FP16_FRACTION_BITS
        m.d.comb += [
            field.eq(Mux(at["kept"] >= 1 << FP16_FRACTION_BITS, at["lsb"] + (FP16_BIAS - 1), 0)),
            bits.eq((field << FP16_FRACTION_BITS) + at["kept"]),
        ]
        magnitude = Mux(bits > infinity, infinity, bits)[: FP16_BITS - 1]
        at = rank(o=Mux(at["zero"], 0, Cat(magnitude, at["negative"])))
        m.d.comb += self.o.eq(at["o"])
        assert rank.count == self.latency
        return m


def _leading_zeros(value: Value) -> Value:
    """Number of zeros above the leading one; the width less one for 0."""
    width = len(value)
    result = Const(width - 1, (width - 1).bit_length())
    for position in range(width):
        result = Mux(value[position], width - 1 - position, result)
    return result[: (width - 1).bit_length()]
