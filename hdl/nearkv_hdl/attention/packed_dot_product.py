"""Two dot products with one operand in common, on one DSP48E2 per lane."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree, delayed, shape_of
from nearkv_hdl.attention.dot_product import accumulated
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, Format
from nearkv_hdl.spec.multiplier import DSP48E2_WIDE_BITS, MacVariant, packing
from nearkv_hdl.spec.scorer_pipeline import (
    INFERRED_MULTIPLIER_RANKS,
    PACK_RANKS,
    SPLIT_RANKS,
    dot_terms,
    packed_terms,
)


class PackedDotProduct(wiring.Component):
    """Two numbers, packed into one wide operand, times a shared narrow one: two products per multiplier.

    Formula: o[k] = Σ over the valid beats since `first` of Σ_lane wide[k][lane]·narrow[lane], k = 0, 1.
    Packed: (wide[1]·2^F + wide[0])·narrow = p1·2^F + p0. Up to `terms` of these are summed as they are; then
    the low F bits, read as signed, are the sum of p0, and the bits above plus the sign of the low ones (which
    had borrowed from them) the sum of p1. The two sums go on in trees of their own.

    Timing: latency 3 + log2(terms of a beat) from `narrow` (product, tree, split, accumulator); `wide` enters
    `lead` = 1 cycle before `narrow`, since it is packed in a register rank of its own. Interval 1,
    free-running; `valid` and `first` enter with `narrow`.
    Numerics: exact for operands within their formats, query codes symmetric: F is chosen so that `terms`
    products fit the low field (`nearkv_hdl.spec.multiplier.packing`).

    Args:
        design: lanes, formats and variant: with `packed_heads` the two are query heads and the narrow operand
            is a key code, with `packed_keys` the two are keys and it is a query code; `lanes` products a
            cycle in the first case, 2·lanes/2 in the second.

    Members:
        wide: two rows of numbers.
        narrow: one row.
        valid: the operands are a beat.
        first: this beat is the first of its token or pair.
        o: two accumulated sums, `latency` cycles after `narrow`.

    Raises ValueError if the design's variant packs nothing.

    """

    def __init__(self, design: DesignConfig) -> None:
        variant = design.mac_variant
        if variant not in (MacVariant.PACKED_HEADS, MacVariant.PACKED_KEYS):
            raise ValueError(f"variant is {variant.value}; allowed: packed_heads, packed_keys")
        self.design = design
        query = shape_of(design.query_code), shape_of(CODE)
        self._wide_shape, narrow = query if variant is MacVariant.PACKED_HEADS else query[::-1]
        self._field = packing(variant, design.query_code).field_bits
        self._terms = packed_terms(design)
        self._lanes = dot_terms(design)
        # |p1| ≤ 2^7·(2^(w−1) − 1), a bit less than the corner of both formats.
        packed = Format(self._field + design.product.width - 1, signed=True)
        self._packed_trees = [AdderTree(packed, self._terms) for _ in range(self._lanes // self._terms)]
        group_sum = design.product.sum_of(self._terms)
        self._trees = [AdderTree(group_sum, len(self._packed_trees)) for _ in range(2)]
        super().__init__(
            {
                "wide": In(self._wide_shape).array(self._lanes).array(2),
                "narrow": In(narrow).array(self._lanes),
                "valid": In(1),
                "first": In(1),
                "o": Out(shape_of(design.dot)).array(2),
            }
        )

    @property
    def lead(self) -> int:
        """Cycles by which `wide` enters before `narrow`."""
        return PACK_RANKS

    @property
    def latency(self) -> int:
        """Cycles from `narrow` to accumulated sums."""
        trees = self._packed_trees[0].latency + SPLIT_RANKS + self._trees[0].latency
        return INFERRED_MULTIPLIER_RANKS + trees + 1

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def _pack(self, lower, upper):
        """upper·2^F + lower: the lower number's sign extension borrows from the upper."""
        sign = lower[-1]
        extension = sign.replicate(self._field - len(lower))
        # Minus the sign is plus −1: all ones, which spares a carry chain its inverters.
        return Cat(lower, extension, upper + sign.replicate(2).as_signed()).as_signed()

    def elaborate(self, platform):
        m = Module()
        valid, first = self.valid, self.first
        for rank in range(self.latency - 1):
            valid = delayed(m, valid, f"valid{rank}")
            first = delayed(m, first, f"first{rank}")

        for index, tree in enumerate(self._packed_trees):
            m.submodules[f"packed{index}"] = tree
            for term in range(self._terms):
                lane = index * self._terms + term
                packed = Signal(signed(DSP48E2_WIDE_BITS), name=f"pack{lane}", reset_less=True)
                m.d.sync += packed.eq(self._pack(self.wide[0][lane], self.wide[1][lane]))
                m.d.comb += tree.i[term].eq(delayed(m, packed * self.narrow[lane], f"product{lane}"))
            low = tree.o[: self._field].as_signed()
            high = tree.o[self._field :].as_signed() + low[-1]
            for k, part in enumerate((low, high)):
                split = Signal(shape_of(self._trees[k].term), name=f"split{index}_{k}", reset_less=True)
                m.d.sync += split.eq(part)
                m.d.comb += self._trees[k].i[index].eq(split)
        for k, tree in enumerate(self._trees):
            m.submodules[f"tree{k}"] = tree
            m.d.comb += self.o[k].eq(accumulated(m, self.design.dot, tree.o, valid, first, f"accumulator{k}"))
        return m
