"""Query preparation and folding: FP16 queries become integer codes, shifts and biases per key block.

score[t] = bias + (Σ_i q'[i]·code[t, i] << e) is the base-2 logit q·k·log2(e)/√d with L fraction bits. All
steps after `prepare_query` are exact integer arithmetic with stated rounding, so that hardware can fold, too.

The bias is anchored at the block's mean key: bias = q·anchor − (Σ_i q'[i]·mean_code[i] << e). Rounding q' to
8 bits then only acts on how a token differs from its block's mean. Anchored at the centre it also shifts the
whole block; on a real model's keys with one token × 64 that cost 5 to 10 % of the top-10 % recall.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.key_block import BlockHeaders, Float16, check_fp16_rows
from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.formats import (
    BIAS_GUARD_BITS,
    CODE,
    QUERY_MANTISSA,
    SCORE,
    SHIFT,
    TWICE_LOW_NIBBLE_MIDDLE,
    Format,
)
from nearkv_hdl.spec.layout import MAX_QUERY_GROUP, KeyFormat, check_head_dim
from nearkv_hdl.spec.score_statistics import MAX_SCORE_FRACTION_BITS, MIN_SCORE_FRACTION_BITS

Int64 = NDArray[np.int64]

LOG2_E = 1.4426950408889634  # log2(e), the nearest float64
FIXED_POINT_BITS = 24  # every finite FP16 number is an integer multiple of 2^-24
# A score's rounding: 256 channels · ½ step of q' · |code − mean_code| ≤ 255 · 2^7 is below 2^22, and the
# roundings of the bias add less than 2: together they are below this.
_ROUNDING_MARGIN = 1 << 23
_BOUND_DROPPED_BITS = 14  # keeps the bound below within 2^53, where float64 sums of integers are exact


@dataclass(frozen=True)
class PreparedQuery:
    """Queries times log2(e)/√head_dim as block floating point.

    Attributes:
        mantissa: int64 [heads, head_dim] within the QUERY_MANTISSA format.
        fraction_bits: int64 [heads]; value = mantissa · 2^-fraction_bits.

    """

    mantissa: Int64
    fraction_bits: Int64


@dataclass(frozen=True)
class FoldedQuery:
    """One set of codes, shift and bias per key block and query head.

    Attributes:
        codes: int16 [blocks, heads, head_dim], |q'| ≤ 2^(query_bits−1) − 1.
        shift: int64 [blocks, heads], e in 0…7.
        bias: int64 [blocks, heads], fits 32 bits.
        score_fraction_bits: int64 [heads], L of the query: a score's value is score · 2^-L.
        key_format: what the blocks are streamed as.

    """

    codes: NDArray[np.int16]
    shift: Int64
    bias: Int64
    score_fraction_bits: Int64
    key_format: tuple[KeyFormat, ...]

    def __getitem__(self, blocks: slice | NDArray[np.integer]) -> FoldedQuery:
        """The same of some of the blocks."""
        chosen = np.arange(len(self.codes))[blocks].tolist()
        return FoldedQuery(
            self.codes[blocks],
            self.shift[blocks],
            self.bias[blocks],
            self.score_fraction_bits,
            tuple(self.key_format[block] for block in chosen),
        )


def prepare_query(query: Float16) -> PreparedQuery:
    """Scale queries by log2(e)/√d and round them half up to 16-bit mantissas under one exponent per head.

    Args:
        query: float16 [heads, head_dim], 1 to 8 heads.

    Raises:
        ValueError: another dtype or shape, a NaN or infinity.

    """
    check_fp16_rows(query, "query")
    heads, head_dim = query.shape
    check_head_dim(head_dim)
    if not 1 <= heads <= MAX_QUERY_GROUP:
        raise ValueError(f"query has {heads} heads; allowed: 1 to {MAX_QUERY_GROUP}")
    scaled = query.astype(np.float64) * (LOG2_E / math.sqrt(head_dim))
    largest = np.abs(scaled).max(axis=1)
    _, exponent = np.frexp(largest)
    # 2^(exponent−1) ≤ largest < 2^exponent, so `width−1` magnitude bits just fit, or overflow by rounding.
    fraction_bits = np.where(largest > 0, QUERY_MANTISSA.width - 1 - exponent, 0).astype(np.int64)
    mantissa = _round_half_up(scaled, fraction_bits)
    fraction_bits -= np.abs(mantissa).max(axis=1) > QUERY_MANTISSA.max
    return PreparedQuery(_round_half_up(scaled, fraction_bits), fraction_bits)


def _round_half_up(values: NDArray[np.float64], fraction_bits: Int64) -> Int64:
    return np.floor(np.ldexp(values, fraction_bits[:, None].astype(np.int32)) + 0.5).astype(np.int64)


def _fixed_point(values: Float16) -> Int64:
    """FP16 numbers as integer multiples of 2^-24 (at most 2^40)."""
    return np.ldexp(values.astype(np.float64), FIXED_POINT_BITS).astype(np.int64)


def fold_query(
    query: PreparedQuery,
    headers: BlockHeaders,
    key_format: KeyFormat | tuple[KeyFormat, ...],
    query_format: Format,
    score_fraction_bits: Int64 | None = None,
) -> FoldedQuery:
    """Fold prepared queries into every key block's scales.

    Args:
        query: prepared queries of the heads that share the blocks' key stream.
        headers: centre, scale and mean code of the kv head's key blocks.
        key_format: one format for all blocks, or one per block.
        query_format: format of a folded code (`DesignConfig.query_code`).
        score_fraction_bits: L per head, int64 [heads]; by default the largest for which every block fits
            e ≤ 7 and every score provably fits 32 bits.

    e is the smallest shift for which no code of the block saturates.

    Raises:
        ValueError: head_dim of query and blocks differ, a wrong number of formats, an L that does not fit.

    """
    if query.mantissa.shape[1] != headers.layout.head_dim:
        raise ValueError(
            f"query has head_dim {query.mantissa.shape[1]}; the blocks have {headers.layout.head_dim}"
        )
    formats = (key_format,) * len(headers) if isinstance(key_format, KeyFormat) else tuple(key_format)
    if len(formats) != len(headers):
        raise ValueError(f"key_format names {len(formats)} blocks; allowed: one format, or {len(headers)}")
    # [blocks, heads, head_dim]: folded queries before rounding, multiples of 2^-(24 + fraction_bits).
    products = query.mantissa[None] * _fixed_point(headers.scale)[:, None, :]
    extremes = products.min(axis=2), products.max(axis=2)
    if score_fraction_bits is None:
        score_fraction_bits = _largest_fraction_bits(query, headers, extremes, query_format)
    # Right shift that turns a product into a code at e = 0.
    unit = FIXED_POINT_BITS + query.fraction_bits - score_fraction_bits
    shift = _smallest_shift(extremes, unit, query_format)
    if (shift > SHIFT.max).any() or (_score_bound(query, headers, unit) > _max_bound()).any():
        raise ValueError(
            f"score_fraction_bits is {score_fraction_bits.tolist()}; too large for these keys:"
            f" allowed: at most {_largest_fraction_bits(query, headers, extremes, query_format).tolist()}"
        )
    codes = rhu(products, (unit + shift)[:, :, None])
    # In half codes, INT8: a code stands for the middle of its step. INT4: the low nibble is not seen, so
    # every mean code drops by 7½, the middle of the 16 codes that share a high nibble.
    is_int8 = np.array([f is KeyFormat.INT8 for f in formats])[:, None]
    twice_mean = 2 * headers.mean_code.astype(np.int64) - np.where(is_int8, 0, TWICE_LOW_NIBBLE_MIDDLE)
    mean_dot = (codes * twice_mean[:, None, :]).sum(axis=2) << shift
    bias = _anchor_score(query, headers, unit) - rhu(mean_dot, 1)
    return FoldedQuery(codes.astype(np.int16), shift, bias, score_fraction_bits, formats)


def _smallest_shift(extremes: tuple[Int64, Int64], unit: Int64, query_format: Format) -> Int64:
    """Smallest e per [blocks, heads] for which the codes fit; SHIFT.max + 1 where none does."""
    shift = np.full(extremes[0].shape, SHIFT.max + 1, np.int64)
    for e in range(SHIFT.max, -1, -1):
        fits = (rhu(extremes[0], unit + e) >= -query_format.max) & (
            rhu(extremes[1], unit + e) <= query_format.max
        )
        shift[fits] = e
    return shift


def _score_bound(query: PreparedQuery, headers: BlockHeaders, unit: Int64) -> NDArray[np.float64]:
    """Bound of |q·anchor| and of |q·k| over any code, in score units, [blocks, heads], rounded up."""
    # Twice the code range: the anchor and the code's distance from it are added separately.
    reach = np.abs(_fixed_point(headers.centre)) + 2 * (-CODE.min) * _fixed_point(headers.scale)
    coarse = ((reach + (1 << _BOUND_DROPPED_BITS) - 1) >> _BOUND_DROPPED_BITS).astype(np.float64)
    sums = coarse @ np.abs(query.mantissa).astype(np.float64).T
    return np.asarray(np.ldexp(sums, (_BOUND_DROPPED_BITS - unit).astype(np.int32)), np.float64)


def _max_bound() -> int:
    return SCORE.max - _ROUNDING_MARGIN


def _largest_fraction_bits(
    query: PreparedQuery, headers: BlockHeaders, extremes: tuple[Int64, Int64], query_format: Format
) -> Int64:
    """Largest L per head for which every block fits e ≤ 7 and every score fits 32 bits."""
    low, high = extremes[0].min(axis=0), extremes[1].max(axis=0)
    candidates = np.arange(MIN_SCORE_FRACTION_BITS, MAX_SCORE_FRACTION_BITS + 1)[:, None]
    largest_shift = FIXED_POINT_BITS + query.fraction_bits - candidates + SHIFT.max
    fits = (rhu(low, largest_shift) >= -query_format.max) & (rhu(high, largest_shift) <= query_format.max)
    best = MIN_SCORE_FRACTION_BITS - 1 + fits.sum(axis=0)
    bound = _score_bound(query, headers, FIXED_POINT_BITS + query.fraction_bits).max(axis=0)
    _, exponent = np.frexp(_max_bound() / np.maximum(bound, np.ldexp(1.0, -MAX_SCORE_FRACTION_BITS)))
    return np.asarray(np.minimum(best, exponent - 1), np.int64)


def _anchor_score(query: PreparedQuery, headers: BlockHeaders, unit: Int64) -> Int64:
    """q·anchor in score units, anchor = centre + scale·(mean_code + ½), [blocks, heads].

    Each product is rounded to BIAS_GUARD_BITS more bits than a score has, the sum once more.
    """
    half_steps = 2 * headers.mean_code.astype(np.int64) + 1
    twice_anchor = 2 * _fixed_point(headers.centre) + _fixed_point(headers.scale) * half_steps
    products = query.mantissa[None] * twice_anchor[:, None, :]
    terms = rhu(products, (unit + 1 - BIAS_GUARD_BITS)[None, :, None])
    return rhu(terms.sum(axis=2), BIAS_GUARD_BITS)
