"""One channel of folding: a query mantissa times scale and centre."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.arith.fp16 import NUMBER, number_of_fp16
from nearkv_hdl.attention.fold_config import (
    FOLD_PRODUCT,
    HALF_STEPS,
    TERM,
    TERM_FRACTION_BITS,
    TERM_PART_BITS,
    UNIT,
    half_units,
)
from nearkv_hdl.attention.fold_shift import FoldShift
from nearkv_hdl.spec.attention import FP16_BITS
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS_GUARD_BITS, CODE, QUERY_MANTISSA


class FoldProduct(wiring.Component):
    """Folds one channel: the code before its block's shift, and its term of q·anchor.

    Formula: with S, C = scale, centre · 2^24 as integers and p = mantissa·S:
    half_units = p >> (unit − 1); term = rhu(2·mantissa·C + p·(2·mean + 1), unit + 1 − 8), as
    `nearkv.codec.query.fold_query` has it. An FP16 number is significand · 2^exponent, so that the
    multipliers see significands only (16 × 12 bit twice, 27 × 9 bit once) and exponents join the shift.

    Timing: half_units `half_latency` = 6 cycles after the operands (decoded, multiplied, shifted), the term
    `latency` = 8 (once more multiplied, added and rounded); interval 1, free-running.
    Numerics: exact, see TERM_FRACTION_BITS for the two parts of the term.

    Args:
        design: width of a query code.

    Members:
        mantissa, unit: of the prepared query.
        scale, centre: FP16 bit patterns.
        mean: mean code.
        half_units: `half_latency` cycles later.
        term: `latency` cycles later.
        overflow: with the term: centre or scale is not finite, or a result does not fit, because `unit`
            belongs to another block.

    """

    def __init__(self, design: DesignConfig) -> None:
        self._half_shift = FoldShift(FOLD_PRODUCT.width, half_units(design).width)
        self._centre_shift = FoldShift(FOLD_PRODUCT.width, TERM_PART_BITS)
        self._scale_shift = FoldShift(FOLD_PRODUCT.product(HALF_STEPS).width, TERM_PART_BITS)
        super().__init__(
            {
                "mantissa": In(shape_of(QUERY_MANTISSA)),
                "unit": In(shape_of(UNIT)),
                "scale": In(FP16_BITS),
                "centre": In(FP16_BITS),
                "mean": In(shape_of(CODE)),
                "half_units": Out(shape_of(half_units(design))),
                "term": Out(shape_of(TERM)),
                "overflow": Out(1),
            }
        )

    @property
    def half_latency(self) -> int:
        """Cycles from operands to half_units: decoder, multiplier, shift."""
        return 2 + self._half_shift.latency

    @property
    def latency(self) -> int:
        """Cycles from operands to term: decoder, two multipliers, shift, adder."""
        return 3 + self._scale_shift.latency + 1

    @property
    def interval(self) -> int:
        """Cycles between two channels."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.half_shift = half_shift = self._half_shift
        m.submodules.centre_shift = centre_shift = self._centre_shift
        m.submodules.scale_shift = scale_shift = self._scale_shift

        # Decoded.
        mantissa = delayed(m, self.mantissa, "mantissa1")
        unit = delayed(m, self.unit, "unit1")
        half_steps = delayed(m, ((self.mean << 1) + 1)[: HALF_STEPS.width].as_signed(), "half_steps1")
        scale = data.View(NUMBER, delayed(m, number_of_fp16(self.scale), "scale1"))
        centre = data.View(NUMBER, delayed(m, number_of_fp16(self.centre), "centre1"))

        # Multiplied. Exponent fields count from 1 at 2^-24; the term's parts count in 2^-TERM_FRACTION_BITS.
        narrow = FOLD_PRODUCT.width
        half_amount = delayed(m, scale.exponent - unit, "half_amount")
        product = delayed(m, (mantissa * scale.significand)[:narrow].as_signed(), "product")
        centre_product = delayed(m, (mantissa * centre.significand)[:narrow].as_signed(), "centre_product")
        term_unit = unit + 1 - BIAS_GUARD_BITS - TERM_FRACTION_BITS
        centre_amount = delayed(m, centre.exponent - term_unit, "centre_amount")
        scale_amount = delayed(m, (scale.exponent - 1) - term_unit, "scale_amount")
        half_steps = delayed(m, half_steps, "half_steps2")
        m.d.comb += [half_shift.value.eq(product), half_shift.amount.eq(half_amount)]
        m.d.comb += self.half_units.eq(half_shift.o)

        # Multiplied by the half steps, brought to one binary point, added, rounded.
        m.d.comb += [
            scale_shift.value.eq(delayed(m, product * half_steps, "scale_product")),
            scale_shift.amount.eq(delayed(m, scale_amount, "scale_amount3")),
            centre_shift.value.eq(delayed(m, centre_product, "centre_product3")),
            centre_shift.amount.eq(delayed(m, centre_amount, "centre_amount3")),
        ]
        exact = centre_shift.o + scale_shift.o + (1 << (TERM_FRACTION_BITS - 1))
        m.d.comb += self.term.eq(
            delayed(m, (exact >> TERM_FRACTION_BITS)[: TERM.width].as_signed(), "rounded")
        )

        overflow = scale.invalid | centre.invalid
        for rank in range(2, self.latency + 1):
            if rank == self.half_latency + 1:
                overflow |= half_shift.overflow
            if rank == self.latency:
                overflow |= centre_shift.overflow | scale_shift.overflow
            overflow = delayed(m, overflow, f"overflow{rank}")
        m.d.comb += self.overflow.eq(overflow)
        return m
