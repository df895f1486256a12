"""From rows to aligned products: the lanes of a processing unit."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.fp16 import NUMBER, number_of_fp16, number_of_int8
from nearkv_hdl.pim.accumulators import RISE
from nearkv_hdl.pim.aligned_product import QK_SHIFT, SHIFT, SHIFT_OFFSET, AlignedProduct
from nearkv_hdl.pim.weight_path import WEIGHT_ENTRY
from nearkv_hdl.spec.attention import (
    EXPONENT_FIELD,
    FP16_BIAS,
    FP16_BITS,
    PRODUCT,
    SUM_FRACTION_BITS,
    VALUE_EXPONENT,
    WEIGHT,
)
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.pim_design import PimDesign

# Shift of m·sig: M − n + 15 + E_V − 26 − ex, the exponent biased by 25.
_VALUE_SHIFT = SHIFT_OFFSET + WEIGHT.fraction_bits - SUM_FRACTION_BITS + FP16_BIAS
_BASE_BITS = 7  # M − n (63 at most) + 40 + E_V
_TOO_LARGE = 15  # a value with exponent field E_V + 15 reaches 2^E_V


def tag_layout(beats: int) -> data.StructLayout:
    """What travels with a lane beat: what it is, where it belongs, how its sum begins."""
    return data.StructLayout(
        {
            "query": 1,  # at most one of query, key, value; none: no beat
            "key": 1,
            "value": 1,
            "first": 1,  # beat of its row
            "final": 1,
            "slot": 1,
            "beat": range(beats),
            "fresh": 1,  # the sums start from 0 with this row
            "rise": RISE.width,  # of the running maximum before this row
        }
    )


class ProductPath(wiring.Component):
    """Decodes a lane beat and multiplies it by the query (keys) or by a weight (values).

    Formula: keys: rhu(q·k·2^16, 0); values: rhu(m·sig, M−n+15+E_V−26−ex). Query beats are stored.
    Timing: latency 5 (decoding, AlignedProduct), interval 1, free-running.
    Numerics: as AlignedProduct. Inf, NaN, an INT8 exponent field of 0 or 31, and |v| ≥ 2^E_V are `invalid`.
    Reset: the tags; numbers and the query memory have none.

    Args:
        design: lanes and head_dim.

    Members:
        tag: of the beat that enters.
        data, exponent: payload of the row stream.
        int8, upper: the beat is one half of an INT8 payload, the upper one.
        weight, value_exponent: of a value row.
        products: aligned products, `latency` cycles later.
        at_numbers, held_weight: tag and weight one cycle after the beat entered.
        at_read, at_products: tag one cycle before the products, and beside them.
        invalid: a number of the beat that entered one cycle before is not allowed.

    """

    def __init__(self, design: PimDesign) -> None:
        self.design = design
        self._lanes = [AlignedProduct() for _ in range(design.lanes)]
        tag = tag_layout(design.beats)
        super().__init__(
            {
                "tag": In(tag),
                "data": In(FP16_BITS * design.lanes),
                "exponent": In(EXPONENT_FIELD.width),
                "int8": In(1),
                "upper": In(1),
                "weight": In(WEIGHT_ENTRY),
                "value_exponent": In(shape_of(VALUE_EXPONENT)),
                "products": Out(shape_of(PRODUCT)).array(design.lanes),
                "at_numbers": Out(tag),
                "held_weight": Out(WEIGHT_ENTRY),
                "at_read": Out(tag),
                "at_products": Out(tag),
                "invalid": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a lane beat to its aligned products: decoding, product."""
        return 1 + self._lanes[0].latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        tags = [self.tag]
        for rank in range(self.latency):
            delayed = Signal(self.tag.shape(), name=f"tag{rank}")
            m.d.sync += delayed.eq(tags[-1])
            tags.append(delayed)
        tag = tags[1]
        assert len(tags) == self.latency + 1
        m.d.comb += [self.at_numbers.eq(tag), self.at_read.eq(tags[-2]), self.at_products.eq(tags[-1])]

        # The query memory is read beside the decoding; its own rows are written one cycle later.
        m.submodules.query = query = memory.Memory(
            shape=design.lanes * NUMBER.size, depth=design.beats, init=[]
        )
        write, read = query.write_port(), query.read_port()
        m.d.comb += [read.addr.eq(self.tag.beat), write.addr.eq(tag.beat), write.en.eq(tag.query)]

        base = Signal(_BASE_BITS, reset_less=True)
        weight = Signal(WEIGHT_ENTRY, reset_less=True)
        m.d.sync += [
            base.eq(self.weight.below + self.value_exponent + _VALUE_SHIFT),
            weight.eq(self.weight),
        ]
        m.d.comb += self.held_weight.eq(weight)

        codes = self.data.word_select(self.upper, CODE.width * design.lanes)
        invalid = []
        for lane, product in enumerate(self._lanes):
            m.submodules[f"lane{lane}"] = product
            number = Signal(NUMBER, name=f"number{lane}", reset_less=True)
            m.d.sync += Value.cast(number).eq(
                Mux(
                    self.int8,
                    number_of_int8(codes.word_select(lane, CODE.width), self.exponent),
                    number_of_fp16(self.data.word_select(lane, FP16_BITS)),
                )
            )
            query_number = data.View(NUMBER, read.data.word_select(lane, NUMBER.size))
            score_shift = Signal(SHIFT.width, name=f"score_shift{lane}")
            value_shift = Signal(_BASE_BITS, name=f"value_shift{lane}")
            m.d.comb += [
                write.data.word_select(lane, NUMBER.size).eq(number),
                score_shift.eq(QK_SHIFT - query_number.exponent - number.exponent),
                value_shift.eq(base - number.exponent),
                product.b.eq(number.significand),
                self.products[lane].eq(product.o),
            ]
            with m.If(tag.value):
                m.d.comb += [
                    product.a.eq(weight.mantissa),
                    product.shift.eq(Mux(value_shift > SHIFT.max, SHIFT.max, value_shift)),
                ]
            with m.Else():
                m.d.comb += [product.a.eq(query_number.significand), product.shift.eq(score_shift)]
            too_large = number.exponent >= self.value_exponent + _TOO_LARGE
            invalid.append(number.invalid | (tag.value & too_large))
        m.d.comb += self.invalid.eq((tag.query | tag.key | tag.value) & Cat(*invalid).any())
        return m
