"""Golden model of the lossy option of a move: FP16 rows as INT8 codes under one FP16 scale each, and back.

Integers throughout. With sig · 2^(field − 25) for an FP16 number:
    scale = the smallest FP16 number ≥ max|x| / 127, at least 2^−24
    code  = sign(x) · ⌊|x| / scale + ½⌋, so |code| ≤ 127
    back  = code · scale, to nearest even, saturating at ±65504
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.attention import FP16_BITS, FP16_EXPONENT_NAN, FP16_FRACTION_BITS
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.layout import FP16_BYTES
from nearkv_hdl.spec.migration import PARTS, SCALE_HEADER_BYTES, PimLayout
from nearkv_sim.golden.migrate_layout import from_tiles, to_tiles

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_SIGNIFICAND = 1 << FP16_FRACTION_BITS
_SIGN = 1 << (FP16_BITS - 1)
_INFINITY = FP16_EXPONENT_NAN << FP16_FRACTION_BITS
_SCALE_SHIFT = CODE.width - 1  # 128 / 127 is a little above 1


def quantise_rows(rows: NDArray[np.float16]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Codes and scales of rows.

    Args:
        rows: float16 [..., head_dim].

    Returns:
        int8 of the same shape, float16 [...]. ValueError for another dtype, Inf or NaN.

    """
    if rows.dtype != np.float16:
        raise ValueError(f"rows are {rows.dtype}; allowed: float16")
    bits = rows.view(np.uint16).astype(np.int64)
    magnitude = bits & (_SIGN - 1)
    if (magnitude >= _INFINITY).any():
        raise ValueError("rows hold Inf or NaN; allowed: finite numbers")
    scale, scale_field = _scales(magnitude.max(axis=-1))
    significand, field = _number(magnitude)
    # ⌊2|x| / scale⌋, then half away from zero. Far below the scale nothing is left of x.
    shift = np.clip(field - scale_field[..., None] + 1, -FP16_EXPONENT_NAN, _SCALE_SHIFT + 1)
    doubled = np.where(shift >= 0, significand << np.maximum(shift, 0), significand >> np.maximum(-shift, 0))
    code = (doubled // scale[..., None] + 1) >> 1
    code = np.where(bits & _SIGN != 0, -code, code)
    return code.astype(np.int8), _fp16(scale, scale_field)


def expand_rows(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> NDArray[np.float16]:
    """Rows of codes and scales.

    Args:
        codes: int8 [..., head_dim].
        scales: float16 [...], finite, not negative.

    Returns:
        float16 of the codes' shape. ValueError for another dtype or such a scale.

    """
    if codes.dtype != np.int8 or scales.dtype != np.float16:
        raise ValueError(f"codes are {codes.dtype}, scales {scales.dtype}; allowed: int8, float16")
    bits = scales.view(np.uint16).astype(np.int64)
    if (bits >= _INFINITY).any():
        raise ValueError("a scale is Inf, NaN or negative; allowed: finite, from 0")
    significand, field = _number(bits)
    product = np.abs(codes.astype(np.int64)) * significand[..., None]
    field = np.broadcast_to(field[..., None], product.shape)
    length = np.frexp(product.astype(np.float64))[1].astype(np.int64)
    drop = length - (FP16_FRACTION_BITS + 1)
    right, left = np.maximum(drop, 0), np.minimum(np.maximum(-drop, 0), field - 1)
    floor = product >> right
    rest, half = product - (floor << right), (np.int64(1) << right) >> 1
    kept = floor + ((right > 0) & ((rest > half) | ((rest == half) & (floor & 1 == 1))))
    # The field counts on through the carry of a significand that rounds up to 2048.
    result = ((field + right - left - 1) << FP16_FRACTION_BITS) + (kept << left)
    result = np.where(product == 0, 0, np.minimum(result, _INFINITY - 1))
    result |= np.where((codes < 0) & (product != 0), _SIGN, 0)
    return result.astype(np.uint16).view(np.float16)


def to_records(layout: PimLayout, rows: NDArray[np.float16]) -> Bytes:
    """Whole tiles as records, what RowQuantiser makes of them.

    Args:
        layout: gives the tile.
        rows: float16 [tokens, K|V, head_dim], whole tiles.

    Returns:
        uint8 [tiles, record_bytes]. ValueError for a fraction of a tile.

    """
    codes, scales = quantise_rows(to_tiles(layout, rows))
    records = np.zeros((len(codes), layout.record_bytes), np.uint8)
    header = scales.astype("<f2").view(np.uint8).reshape(len(records), -1)
    records[:, : header.shape[1]] = header
    records[:, SCALE_HEADER_BYTES:] = codes.view(np.uint8).reshape(len(records), -1)
    return records


def from_records(layout: PimLayout, records: Bytes) -> NDArray[np.float16]:
    """Rows of records, float16 [tokens, K|V, head_dim]; ValueError for another shape or a bad scale."""
    if records.ndim != 2 or records.shape[1] != layout.record_bytes:
        raise ValueError(f"records are {list(records.shape)}; allowed: [tiles, {layout.record_bytes}]")
    shape = (len(records), PARTS, layout.tile_tokens)
    scales = np.ascontiguousarray(records[:, : PARTS * layout.tile_tokens * FP16_BYTES]).view("<f2")
    codes = np.ascontiguousarray(records[:, SCALE_HEADER_BYTES:]).view(np.int8)
    tiles = expand_rows(codes.reshape(*shape, -1), scales.astype(np.float16).reshape(shape))
    return from_tiles(layout, tiles)


def _number(bits: Int64) -> tuple[Int64, Int64]:
    """Significand and field of magnitudes; a subnormal has field 1."""
    field = bits >> FP16_FRACTION_BITS
    significand = (bits & (_SIGNIFICAND - 1)) + np.where(field > 0, _SIGNIFICAND, 0)
    return significand, np.maximum(field, 1)


def _scales(largest: Int64) -> tuple[Int64, Int64]:
    """Significand and field of the smallest FP16 number ≥ largest / 127, and ≥ 2^−24."""
    significand, field = _number(largest)
    raised = significand + -(-significand // CODE.max)  # ⌈sig · 128 / 127⌉, 7 places further down
    drop = np.where(raised >= 2 * _SIGNIFICAND, 1, 0)
    drop = np.maximum(drop, _SCALE_SHIFT + 1 - field)
    scale = np.maximum(-(-raised >> drop), 1)
    return scale, field - _SCALE_SHIFT + drop


def _fp16(significand: Int64, field: Int64) -> NDArray[np.float16]:
    """FP16 of a significand below 2048; below 1024 only with field 1."""
    bits = ((field - 1) << FP16_FRACTION_BITS) + significand
    return bits.astype(np.uint16).view(np.float16)
