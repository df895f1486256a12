"""What packs into one multiplier, by the widths of the block and by trying the extremes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from nearkv_hdl.spec.design import Family
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.formats import CODE, folded_query
from nearkv_hdl.spec.multiplier import (
    DSP48E2_WIDE_BITS,
    MacVariant,
    Packing,
    default_variant,
    packing,
)

HEADS, KEYS = MacVariant.PACKED_HEADS, MacVariant.PACKED_KEYS


@pytest.mark.parametrize(
    ("variant", "query_bits", "expected"),
    [
        (HEADS, 8, Packing(field_bits=19, terms=16)),
        (HEADS, 10, Packing(field_bits=17, terms=1)),
        (KEYS, 8, Packing(field_bits=18, terms=8)),
        (KEYS, 10, Packing(field_bits=18, terms=2)),
    ],
)
def test_fields_hold_the_extremes_and_no_twice_as_many_terms(variant, query_bits, expected):
    query = folded_query(query_bits)
    assert packing(variant, query) == expected
    field, terms = expected.field_bits, expected.terms
    wide, narrow = (-query.max, query.max), (CODE.min, CODE.max)
    if variant is KEYS:
        wide, narrow = narrow, wide
    for upper, lower, shared in product(wide, wide, narrow):
        packed = (upper << field) + lower
        assert -(1 << (DSP48E2_WIDE_BITS - 1)) <= packed < 1 << (DSP48E2_WIDE_BITS - 1)
        total = terms * packed * shared
        low = (total + (1 << (field - 1))) % (1 << field) - (1 << (field - 1))
        assert (low, (total - low) >> field) == (terms * lower * shared, terms * upper * shared)
    # Twice as many terms of the widest field that the block has room for would not fit.
    widest = DSP48E2_WIDE_BITS - (query.width if variant is HEADS else CODE.width + 1)
    assert 2 * terms * -CODE.min * query.max > (1 << (widest - 1)) - 1


@pytest.mark.parametrize("variant", [HEADS, KEYS])
def test_twelve_bits_do_not_pack(variant):
    with pytest.raises(ValueError, match=f"query_bits is 12 with variant {variant.value}; allowed: 8, 10"):
        packing(variant, folded_query(12))


@pytest.mark.parametrize(
    ("family", "query_bits", "query_group", "expected"),
    [
        (Family.ULTRASCALE_PLUS, 8, 8, HEADS),
        (Family.ULTRASCALE_PLUS, 10, 2, HEADS),
        (Family.ULTRASCALE_PLUS, 8, 1, KEYS),
        (Family.ULTRASCALE_PLUS, 12, 8, MacVariant.PLAIN),
        (Family.ULTRASCALE_PLUS, 12, 1, MacVariant.PLAIN),
        (Family.ECP5, 8, 1, MacVariant.MULT18X18D),
        (Family.ECP5, 12, 8, MacVariant.MULT18X18D),
    ],
)
def test_the_default_follows_from_family_and_query(family, query_bits, query_group, expected):
    assert default_variant(family, folded_query(query_bits), query_group) is expected


def test_blocks_are_counted():
    smartssd = DESIGNS["smartssd_ku15p"]
    assert (smartssd.mac_variant, smartssd.macs, smartssd.dsp_blocks) == (HEADS, 512, 256)
    assert replace(smartssd, query_group=3).dsp_blocks == 128
    assert replace(smartssd, query_group=3, variant=KEYS).dsp_blocks == 96
    assert replace(smartssd, variant=MacVariant.PLAIN).dsp_blocks == 512
    assert replace(smartssd, query_bits=12).dsp_blocks == 512
    assert DESIGNS["ulx3s_85f"].dsp_blocks == 64


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "ulx3s_85f",
            {"variant": HEADS},
            "variant is packed_heads on ecp5; allowed there: plain, mult18x18d",
        ),
        ("ulx3s_85f", {"variant": KEYS}, "variant is packed_keys on ecp5"),
        (
            "smartssd_ku15p",
            {"variant": MacVariant.MULT18X18D},
            "variant is mult18x18d on xcup; allowed there: plain, packed_heads",
        ),
        ("smartssd_ku15p", {"variant": HEADS, "query_group": 1}, "packed_heads with query_group 1"),
        (
            "smartssd_ku15p",
            {"variant": HEADS, "query_bits": 12},
            "query_bits is 12 with variant packed_heads",
        ),
    ],
)
def test_variants_that_cannot_be_built_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(DESIGNS[name], **changes)
