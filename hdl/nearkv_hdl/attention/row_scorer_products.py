"""Products of FP16 key rows and the queries of a group, aligned for exact sums."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.fp16 import NUMBER, number_of_fp16
from nearkv_hdl.pim.aligned_product import QK_SHIFT, AlignedProduct
from nearkv_hdl.spec.attention import EXPONENT_FIELD, FP16_BITS, PRODUCT, SIGNIFICAND
from nearkv_hdl.spec.design import DesignConfig

# A stored query number: finite, so without the flag of NUMBER.
_STORED = data.StructLayout({"significand": shape_of(SIGNIFICAND), "exponent": EXPONENT_FIELD.width})


def channels_per_beat(design: DesignConfig) -> int:
    """FP16 numbers that a beat of the design's bus carries."""
    return 8 * design.bus_bytes // FP16_BITS


def row_beats(design: DesignConfig, head_dim: int) -> int:
    """Bus beats of one FP16 row."""
    design.check_head_dim(head_dim)
    return head_dim // channels_per_beat(design)


class RowProducts(wiring.Component):
    """Holds a group's queries and multiplies a beat of a key row by the same channels of all of them.

    Formula: products[h][c] = rhu(q[h, c]·k[c]·2^16, 0).
    Timing: latency 5 (decoding beside the read of the queries, AlignedProduct), interval 1, free-running. A
    query beat can be read two cycles after it came.
    Numerics: as AlignedProduct: exact product, one rounding half up. Inf and NaN are `invalid`.
    Reset: `is_query` and `is_key` beside the decoded numbers; numbers and queries have none.

    Args:
        design: bus, query group, head dimensions.

    Members:
        data: a beat, `channels_per_beat` FP16 numbers, the lowest channel in the lowest bits.
        is_query, head: store it as this head's.
        is_key: multiply it.
        beat: its number in the row.
        products: aligned products, `latency` cycles later.
        invalid: the query or key beat of one cycle ago holds an Inf or a NaN.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = channels_per_beat(design)
        self.rows = row_beats(design, design.head_dims[-1])
        self._products = [[AlignedProduct() for _ in range(self.lanes)] for _ in range(design.query_group)]
        super().__init__(
            {
                "data": In(8 * design.bus_bytes),
                "is_query": In(1),
                "is_key": In(1),
                "head": In(range(design.query_group)),
                "beat": In(range(self.rows)),
                "products": Out(shape_of(PRODUCT)).array(design.query_group, self.lanes),
                "invalid": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a key beat to its aligned products: decoding, product."""
        return 1 + self._products[0][0].latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        # One decoder for both kinds of beat.
        numbers = [Signal(NUMBER, name=f"number{lane}", reset_less=True) for lane in range(self.lanes)]
        is_query, is_key = Signal(), Signal()
        head, beat = Signal.like(self.head, reset_less=True), Signal.like(self.beat, reset_less=True)
        m.d.sync += [
            is_query.eq(self.is_query),
            is_key.eq(self.is_key),
            head.eq(self.head),
            beat.eq(self.beat),
        ]
        for lane, number in enumerate(numbers):
            m.d.sync += Value.cast(number).eq(number_of_fp16(self.data.word_select(lane, FP16_BITS)))
        m.d.comb += self.invalid.eq((is_query | is_key) & Cat(n.invalid for n in numbers).any())

        stored = Cat(Cat(n.significand, n.exponent) for n in numbers)
        for h, lanes in enumerate(self._products):
            m.submodules[f"queries{h}"] = queries = memory.Memory(
                shape=len(stored), depth=max(2, self.rows), init=[]
            )
            write, read = queries.write_port(), queries.read_port()
            m.d.comb += [
                write.addr.eq(beat),
                write.data.eq(stored),
                write.en.eq(is_query & (head == h)),
                read.addr.eq(self.beat),
            ]
            for lane, (product, number) in enumerate(zip(lanes, numbers, strict=True)):
                m.submodules[f"product{h}_{lane}"] = product
                query = data.View(_STORED, read.data.word_select(lane, _STORED.size))
                m.d.comb += [
                    product.a.eq(query.significand),
                    product.b.eq(number.significand),
                    product.shift.eq(QK_SHIFT - query.exponent - number.exponent),
                    self.products[h][lane].eq(product.o),
                ]
        return m
