"""FP16 numbers as significand and exponent."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Mux, Value
from amaranth.lib import data

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import (
    EXPONENT_FIELD,
    FP16_EXPONENT_BITS,
    FP16_EXPONENT_NAN,
    FP16_FRACTION_BITS,
    INT8_SIGNIFICAND_SHIFT,
    SIGNIFICAND,
)
from nearkv_hdl.spec.formats import CODE

# A number sig · 2^(exponent − 25): exact for every finite FP16 number and every INT8 code.
NUMBER = data.StructLayout(
    {"significand": shape_of(SIGNIFICAND), "exponent": EXPONENT_FIELD.width, "invalid": 1}
)


def number_of_fp16(bits: Value) -> Value:
    """NUMBER of an FP16 bit pattern; a subnormal has exponent 1, Inf and NaN are invalid."""
    fraction = bits[:FP16_FRACTION_BITS]
    field = bits[FP16_FRACTION_BITS : FP16_FRACTION_BITS + FP16_EXPONENT_BITS]
    normal = field.any()
    magnitude = Cat(fraction, normal, Const(0, 1))
    significand = Mux(bits[-1], -magnitude, magnitude)[: SIGNIFICAND.width]
    return Cat(significand, Mux(normal, field, 1), field == FP16_EXPONENT_NAN)


def number_of_int8(code: Value, exponent: Value) -> Value:
    """NUMBER of an INT8 code under its group's exponent field; fields 0 and 31 are invalid."""
    significand = Cat(Const(0, INT8_SIGNIFICAND_SHIFT), code[: CODE.width])
    return Cat(significand, exponent, (exponent == 0) | (exponent == FP16_EXPONENT_NAN))
