"""Packed partial results as streams; the bytes are defined in `nearkv_hdl.spec.packed_partial`."""

from __future__ import annotations

from amaranth.lib import data

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import LOGIT, SUM, VALUE_EXPONENT
from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.spec.packed_partial import ALONE_BIT, HEADER_BYTES, MERGE_BIT, PackedPartial
from nearkv_hdl.stream.width import Narrow, Widen

_BYTE = 8

# The first bytes of a record.
HEADER = data.StructLayout(
    {
        "total": shape_of(SUM),
        "maximum": shape_of(LOGIT),
        "value_exponent": shape_of(VALUE_EXPONENT),
        "spare": _BYTE - VALUE_EXPONENT.width + MERGE_BIT,
        "merge": 1,
        "alone": 1,
        "unused": _BYTE - 1 - ALONE_BIT,
    }
)
assert HEADER.size == _BYTE * HEADER_BYTES


def packed_layout(beat_bytes: int) -> data.StructLayout:
    """Payload of a stream of packed partials: bytes, first lowest; `last` on a record's final beat."""
    return data.StructLayout({"data": _BYTE * beat_bytes, "last": 1})


def check_lanes(sizes: PackedPartial, partial_lanes: int) -> int:
    """Beats of a group of sums; ValueError unless whole beats make a group."""
    if not (is_power_of_two(partial_lanes) and partial_lanes >= 2) or sizes.group_channels % partial_lanes:
        raise ValueError(
            f"partial_lanes is {partial_lanes} with head_dim {sizes.head_dim}; allowed: a power of two from 2"
            f" that divides a group of {sizes.group_channels} channels"
        )
    return sizes.group_channels // partial_lanes


def record_interval(sizes: PackedPartial, partial_lanes: int) -> int:
    """Cycles between two partials at full rate, on either side of a link.

    The longer of the record's beats and 1 + beats of sums, and these wait for what is left of a prefix after
    the r beats of sums that fill a beat of the link, the most that the width conversion holds meanwhile.
    """
    sum_beats = sizes.head_dim // partial_lanes
    filling_beats = max(1, sizes.beat_bytes // partial_lanes)
    return max(1 + sum_beats + max(0, sizes.prefix_beats - filling_beats), sizes.record_beats)


def change_width(from_bytes: int, to_bytes: int) -> Widen | Narrow:
    """A component that regroups the bytes of a stream."""
    return (Widen if to_bytes >= from_bytes else Narrow)(from_bytes, to_bytes)
