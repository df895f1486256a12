"""Lossy option for reduction traffic: the sums of a partial result as 8-bit codes under a shift per group.

The rule and the byte layout stand in `nearkv_hdl.spec.packed_partial`. m, l and E_V travel exactly. With
codes the exact merge is no longer independent of how tokens are split: what is rounded depends on the shard.
Bit-exact with `nearkv_hdl.pim.partial_packer` and `partial_unpacker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.attention import LOGIT, SUM, VALUE_EXPONENT, Merge, check_value_exponent, groups_of
from nearkv_hdl.spec.formats import CODE, Format
from nearkv_hdl.spec.packed_partial import ALONE_BIT, HEADER_BYTES, MAX_SHIFT, MERGE_BIT, PackedPartial
from nearkv_sim.golden.attention import Int64, Partial

Bytes = NDArray[np.uint8]

_TOTAL_BYTES = SUM.width // 8
_MAXIMUM = slice(_TOTAL_BYTES, _TOTAL_BYTES + 4)
_EXPONENT, _FLAGS = _TOTAL_BYTES + 4, _TOTAL_BYTES + 5
_EXPONENT_SPARE_BITS = 8 - VALUE_EXPONENT.width


@dataclass(frozen=True)
class QuantisedPartial:
    """A partial result on the wire.

    Attributes:
        exact: m and l as they are; its sums are not transmitted.
        codes: int8 [heads, head_dim].
        shifts: uint8 [heads, groups of 32 channels], 0 to 41.

    Raises ValueError for shapes that disagree, other dtypes, a larger shift, or a head_dim without such
    groups.

    """

    exact: Partial
    codes: NDArray[np.int8]
    shifts: Bytes

    def __post_init__(self) -> None:
        """Check shapes, dtypes and shifts."""
        heads, head_dim, groups = _sizes_of(self.exact)
        if self.codes.shape != (heads, head_dim) or self.shifts.shape != (heads, groups):
            raise ValueError(
                f"codes are {list(self.codes.shape)}, shifts {list(self.shifts.shape)}; allowed:"
                f" [{heads}, {head_dim}] and [{heads}, {groups}]"
            )
        if self.codes.dtype != np.int8 or self.shifts.dtype != np.uint8:
            raise ValueError(
                f"codes are {self.codes.dtype}, shifts {self.shifts.dtype}; allowed: int8 and uint8"
            )
        if self.shifts.max(initial=0) > MAX_SHIFT:
            raise ValueError(f"a shift is {self.shifts.max()}; allowed: 0 to {MAX_SHIFT}")


def quantise_partial(partial: Partial) -> QuantisedPartial:
    """Round the sums of every head.

    ValueError for shapes that disagree, sums beyond 48 bits, a head_dim without groups of 32 channels.
    """
    heads, head_dim, groups = _sizes_of(partial)
    _check_integers("a sum", partial.sums, SUM)
    grouped = partial.sums.astype(np.int64).reshape(heads, groups, head_dim // groups)
    largest = np.abs(grouped).max(axis=2)
    length = np.frexp(largest.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(length - (CODE.width - 1), 0)
    shift += rhu(largest, shift) > CODE.max
    codes = rhu(grouped, shift[:, :, None]).reshape(heads, head_dim)
    return QuantisedPartial(
        replace(partial, sums=np.zeros_like(partial.sums)), codes.astype(np.int8), shift.astype(np.uint8)
    )


def expand_partial(quantised: QuantisedPartial) -> Partial:
    """The partial that the receiver goes on with; a sum that would be 2^47 or more saturates."""
    head_dim = quantised.codes.shape[1]
    shifts = np.repeat(quantised.shifts, head_dim // groups_of(head_dim), axis=1).astype(np.int64)
    sums = np.clip(quantised.codes.astype(np.int64) << shifts, SUM.min, SUM.max)
    return replace(quantised.exact, sums=sums)


def pack(quantised: QuantisedPartial, exponent: int, merge: Merge, beat_bytes: int) -> Bytes:
    """Bytes on the link, uint8 [heads, record_bytes].

    ValueError for a beat that does not suit, an exponent outside −13…16, l beyond 48 bits or m beyond 32.
    """
    sizes = PackedPartial(quantised.codes.shape[1], beat_bytes)
    prefix = _prefix(quantised.exact.total, quantised.exact.maximum, exponent, sizes)
    prefix[:, _FLAGS] = Merge(merge) << MERGE_BIT
    prefix[:, HEADER_BYTES : HEADER_BYTES + sizes.groups] = quantised.shifts
    return np.concatenate([prefix, quantised.codes.view(np.uint8)], axis=1)


def pack_maximum(maximum: Int64, exponent: int, head_dim: int, beat_bytes: int) -> Bytes:
    """Bytes of maxima alone, uint8 [heads, prefix_bytes]; `maximum` is int64 [heads], logits (Q15.16).

    ValueError as for `pack`, and for another shape.
    """
    if maximum.ndim != 1:
        raise ValueError(f"maximum is {list(maximum.shape)}; allowed: [heads]")
    sizes = PackedPartial(head_dim, beat_bytes)
    prefix = _prefix(np.zeros(len(maximum), np.int64), maximum, exponent, sizes)
    prefix[:, _FLAGS] = 1 << ALONE_BIT
    return prefix


def unpack(records: Bytes, head_dim: int, beat_bytes: int) -> tuple[QuantisedPartial, Int64, Int64]:
    """Partials from `pack`'s bytes.

    Returns:
        the partials; int64 [heads] E_V; int64 [heads] of Merge.

    Raises:
        ValueError: another length of a record or dtype, a maximum alone, a shift above 41.

    """
    sizes = PackedPartial(head_dim, beat_bytes)
    heads = len(records)
    if records.shape != (heads, sizes.record_bytes) or records.dtype != np.uint8:
        raise ValueError(
            f"records are {records.dtype} {list(records.shape)};"
            f" allowed: uint8 [{heads}, {sizes.record_bytes}]"
        )
    flags = records[:, _FLAGS]
    if (flags >> ALONE_BIT & 1).any():
        raise ValueError("a record is a maximum alone; allowed: records with codes")
    words = np.zeros((heads, 8), np.uint8)
    words[:, 8 - _TOTAL_BYTES :] = records[:, :_TOTAL_BYTES]
    total = words.view("<i8")[:, 0] >> 64 - SUM.width
    maximum = np.ascontiguousarray(records[:, _MAXIMUM]).view("<i4")[:, 0].astype(np.int64)
    field = records[:, _EXPONENT] << _EXPONENT_SPARE_BITS
    exponent = field.view(np.int8).astype(np.int64) >> _EXPONENT_SPARE_BITS
    codes = np.ascontiguousarray(records[:, sizes.prefix_bytes :]).view(np.int8)
    shifts = records[:, HEADER_BYTES : HEADER_BYTES + sizes.groups]
    exact = Partial(maximum, total.astype(np.int64), np.zeros(codes.shape, np.int64))
    return QuantisedPartial(exact, codes, shifts), exponent, (flags >> MERGE_BIT & 1).astype(np.int64)


def packed_fields(records: Sequence[Bytes], beat_bytes: int) -> dict[str, Bytes]:
    """Beats of records and maxima, one after the other: data [beats, beat_bytes], last.

    ValueError for records that are not whole beats.
    """
    data, last = [], []
    for group in records:
        if group.ndim != 2 or group.shape[1] % beat_bytes:
            raise ValueError(f"records are {list(group.shape)}; allowed: [records, n · {beat_bytes}]")
        data.append(group.reshape(-1, beat_bytes))
        ends = np.zeros((len(group), group.shape[1] // beat_bytes), np.uint8)
        ends[:, -1] = 1
        last.append(ends.reshape(-1))
    return {"data": np.concatenate(data), "last": np.concatenate(last)}


def _sizes_of(partial: Partial) -> tuple[int, int, int]:
    """Heads, head_dim, groups of channels."""
    shapes = partial.sums.shape, partial.total.shape, partial.maximum.shape
    if len(shapes[0]) != 2 or not shapes[0][:1] == shapes[1] == shapes[2]:
        sums, total, maximum = map(list, shapes)
        raise ValueError(
            f"sums are {sums}, total {total}, maximum {maximum}; allowed: [heads, head_dim], twice [heads]"
        )
    heads, head_dim = shapes[0]
    return heads, head_dim, groups_of(head_dim)


def _check_integers(name: str, values: Int64, form: Format) -> None:
    """Bits that the format has no room for would be lost without notice."""
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} is {values.dtype}; allowed: integers")
    low, high = values.min(initial=0), values.max(initial=0)
    if low < form.min or high > form.max:
        raise ValueError(f"{name} is {low} to {high}; allowed: signed {form.width} bit")


def _prefix(total: Int64, maximum: Int64, exponent: int, sizes: PackedPartial) -> Bytes:
    _check_integers("a total", total, SUM)
    _check_integers("a maximum", maximum, LOGIT)
    prefix = np.zeros((len(total), sizes.prefix_bytes), np.uint8)
    prefix[:, :_TOTAL_BYTES] = total.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :_TOTAL_BYTES]
    prefix[:, _MAXIMUM] = maximum.astype("<i4").view(np.uint8).reshape(-1, 4)
    prefix[:, _EXPONENT] = check_value_exponent(exponent) & (1 << VALUE_EXPONENT.width) - 1
    return prefix
