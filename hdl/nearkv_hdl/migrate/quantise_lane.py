"""Arithmetic of the quantiser: a row's scale, and one lane's code."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.fp16 import number_of_fp16
from nearkv_hdl.arith.ranks import Ranks
from nearkv_hdl.spec.attention import FP16_BITS, FP16_EXPONENT_BITS, FP16_FRACTION_BITS
from nearkv_hdl.spec.formats import CODE

SIGNIFICAND_BITS = FP16_FRACTION_BITS + 1
_EXTRA_BITS = CODE.width - 1  # the scale lies 7 binary places below the largest number
_STEPS_PER_RANK = 2  # of the division

# A positive FP16 number significand · 2^(field − 25).
SCALE = data.StructLayout({"significand": SIGNIFICAND_BITS, "field": FP16_EXPONENT_BITS})


def fp16_of(scale):
    """FP16 bits of a SCALE, without sign: the field counts on from the significand's leading one."""
    return (Cat(Const(0, FP16_FRACTION_BITS), (scale.field - 1)[:FP16_EXPONENT_BITS]) + scale.significand)[
        : FP16_BITS - 1
    ]


class RowScale(wiring.Component):
    """The scale of a row from its largest magnitude.

    Formula: the smallest FP16 number ≥ largest / 127, at least 2^−24. sig · 128 / 127 = sig + sig / 127,
    rounded up, then shifted up to three of these: past 2047, or below the smallest exponent.
    Timing: latency 2, interval 1, free-running.
    Numerics: exact; rounding up twice is rounding up once.
    Reset: none, all registers hold data.

    Members:
        largest: FP16 magnitude bits, finite.
        o: SCALE, `latency` cycles later.

    """

    def __init__(self) -> None:
        super().__init__({"largest": In(FP16_BITS - 1), "o": Out(SCALE)})

    @property
    def latency(self) -> int:
        """Cycles from `largest` to the scale."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two rows."""
        return 1

    def elaborate(self, platform):
        m = Module()
        field = self.largest[FP16_FRACTION_BITS:]
        significand = Cat(self.largest[:FP16_FRACTION_BITS], field.any())

        # ⌈sig / 127⌉ = ⌊n / 127⌋ with n = sig + 126; below 127 · 128 that is (n + ⌊n / 128⌋ + 1) >> 7.
        numerator = Signal(SIGNIFICAND_BITS + 1)
        raised = Signal(SIGNIFICAND_BITS + 1, reset_less=True)
        number_field = Signal(FP16_EXPONENT_BITS, reset_less=True)
        m.d.comb += numerator.eq(significand + (CODE.max - 1))
        quotient = (numerator + (numerator >> _EXTRA_BITS) + 1) >> _EXTRA_BITS
        m.d.sync += [raised.eq(significand + quotient), number_field.eq(Mux(field.any(), field, 1))]

        drop = Signal(range(_EXTRA_BITS + 1))
        with m.If(number_field <= _EXTRA_BITS):
            m.d.comb += drop.eq(_EXTRA_BITS + 1 - number_field)
        with m.Else():
            m.d.comb += drop.eq(raised[-1])
        lost = (raised & ((Const(1, 1) << drop) - 1).as_unsigned()).any()
        scale = Signal(SIGNIFICAND_BITS)
        m.d.comb += scale.eq((raised >> drop) + lost)
        m.d.sync += [
            self.o.significand.eq(Mux(scale == 0, 1, scale)),
            self.o.field.eq(number_field - _EXTRA_BITS + drop),
        ]
        return m


class QuantiseLane(wiring.Component):
    """Code of one number under its row's scale.

    Formula: sign(x) · ⌊|x| / scale + ½⌋, by 8 restoring steps for ⌊2|x| / scale⌋.
    Timing: latency 7 (numerator, 4 × 2 steps, rounding, sign), interval 1, all registers under `enable`.
    Numerics: exact quotient, half away from zero, for |x| ≤ 127 · scale; otherwise undefined.
    Reset: none, all registers hold data.

    Members:
        enable: clock enable of every register.
        number: FP16 bits.
        scale: SCALE of its row.
        o: code, `latency` cycles later.

    """

    def __init__(self) -> None:
        super().__init__(
            {"enable": In(1), "number": In(FP16_BITS), "scale": In(SCALE), "o": Out(shape_of(CODE))}
        )

    @property
    def latency(self) -> int:
        """Cycles from a number to its code."""
        return 1 + CODE.width // _STEPS_PER_RANK + 2

    @property
    def interval(self) -> int:
        """Cycles between two numbers."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rank = Ranks(m, self.enable)

        # 2|x| over the scale's last place; it has less than 8 bits more than the scale.
        number = data.View(
            data.StructLayout({"fraction": FP16_FRACTION_BITS, "field": FP16_EXPONENT_BITS, "negative": 1}),
            self.number,
        )
        normal = number.field.any()
        places = Signal(signed(FP16_EXPONENT_BITS + 2))
        m.d.comb += places.eq(self.scale.field + _EXTRA_BITS - Mux(normal, number.field, 1))
        numerator = Cat(Const(0, CODE.width), number.fraction, normal) >> places.as_unsigned()
        at = rank(
            rest=numerator[CODE.width :],
            bits=numerator[: CODE.width],
            scale=self.scale.significand,
            quotient=Const(0, CODE.width),
            negative=number.negative,
        )
        for step in range(CODE.width):
            doubled = Cat(at["bits"][-1], at["rest"])
            fits = doubled >= at["scale"]
            left = Mux(fits, doubled - at["scale"], doubled)[:SIGNIFICAND_BITS]
            at |= {
                "rest": left,
                "bits": Cat(Const(0, 1), at["bits"][:-1]),
                "quotient": Cat(fits, at["quotient"][:-1]),
            }
            if step % _STEPS_PER_RANK == _STEPS_PER_RANK - 1:
                at = rank(**at)
        at = rank(code=((at["quotient"] + 1) >> 1)[: CODE.width - 1], negative=at["negative"])
        at = rank(code=Mux(at["negative"], -at["code"], at["code"])[: CODE.width])
        m.d.comb += self.o.eq(at["code"])
        assert rank.count == self.latency
        return m


def is_finite(bits: Value) -> Value:
    """Whether FP16 bits are neither Inf nor NaN."""
    return ~number_of_fp16(bits)[-1]
