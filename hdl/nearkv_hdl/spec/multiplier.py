"""How the scorer's multipliers are built: the variants, what packs, and what each family takes by default."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nearkv_hdl.spec.formats import CODE, Format

# DSP48E2 multiplies 27 by 18 bits, MULT18X18D 18 by 18, both signed (UG579, FPGA-TN-02205).
DSP48E2_WIDE_BITS = 27
MULT18X18D_BITS = 18


class Family(Enum):
    """FPGA family a design is synthesised for, by the name Yosys knows it under."""

    ULTRASCALE_PLUS = "xcup"
    ECP5 = "ecp5"


class MacVariant(Enum):
    """How products are mapped to DSP blocks. All give the same bits; they differ in blocks and latency."""

    PLAIN = "plain"  # one product per block, inferred, on every family: the reference
    PACKED_HEADS = "packed_heads"  # two query heads share a key code on one DSP48E2
    PACKED_KEYS = "packed_keys"  # two keys share a query code on one DSP48E2
    MULT18X18D = "mult18x18d"  # one product per MULT18X18D with its three register ranks


@dataclass(frozen=True)
class Packing:
    """Two products in one: (wide1·2^field_bits + wide0)·narrow holds wide1·narrow above wide0·narrow.

    Attributes:
        field_bits: distance of the two; the lower product, and sums of it, must fit it as signed number.
        terms: products that may be summed before the fields are split, a power of two.

    """

    field_bits: int
    terms: int


def _most_terms(query: Format, field_bits: int) -> int:
    """Largest power of two of products that a signed field holds in sum; 0 if not even one fits."""
    largest_product = -CODE.min * query.max
    terms = ((1 << (field_bits - 1)) - 1) // largest_product
    return 1 << (terms.bit_length() - 1) if terms else 0


def _fields(variant: MacVariant, query: Format) -> int:
    """Widest lower field that the wide operand of a DSP48E2 leaves for the upper number.

    |q'| < 2^(w−1) also after the lower number's borrow, so that two query codes take field + w bits; a code
    reaches −2^7, borrows, and takes one bit more.
    """
    upper_bits = query.width if variant is MacVariant.PACKED_HEADS else CODE.width + 1
    return DSP48E2_WIDE_BITS - upper_bits


def packing(variant: MacVariant, query: Format) -> Packing:
    """Field and terms for a packed variant; ValueError if a product of this query format does not fit."""
    widest = _fields(variant, query)
    terms = _most_terms(query, widest)
    if terms == 0:
        raise ValueError(
            f"query_bits is {query.width} with variant {variant.value}; allowed: 8, 10, since the lower of"
            f" two packed products has {widest} bits and reaches {-CODE.min * query.max}"
        )
    # A narrower field that holds as many terms makes narrower adders.
    narrowest = next(bits for bits in range(1, widest + 1) if _most_terms(query, bits) == terms)
    return Packing(narrowest, terms)


def default_variant(family: Family, query: Format, query_group: int) -> MacVariant:
    """The variant with the fewest DSP blocks, or on ECP5 the highest clock.

    UltraScale+ packs heads if there are two, keys if there is one. 12-bit queries do not pack and stay plain.
    """
    if family is Family.ECP5:
        return MacVariant.MULT18X18D
    variant = MacVariant.PACKED_HEADS if query_group > 1 else MacVariant.PACKED_KEYS
    return variant if _most_terms(query, _fields(variant, query)) else MacVariant.PLAIN


def check_variant(variant: MacVariant, family: Family, query: Format, query_group: int) -> None:
    """Raise ValueError unless the variant can be built on the family for these queries."""
    needs = Family.ECP5 if variant is MacVariant.MULT18X18D else Family.ULTRASCALE_PLUS
    if variant is not MacVariant.PLAIN and family is not needs:
        allowed = (MacVariant.PLAIN, default_variant(family, query, query_group))
        raise ValueError(
            f"variant is {variant.value} on {family.value}; allowed there:"
            f" {', '.join(dict.fromkeys(v.value for v in allowed))}"
        )
    if variant in (MacVariant.PACKED_HEADS, MacVariant.PACKED_KEYS):
        packing(variant, query)
    if variant is MacVariant.PACKED_HEADS and query_group == 1:
        raise ValueError(
            "variant is packed_heads with query_group 1; allowed: query_group 2 to 8, since two heads share"
            " a multiplier"
        )
