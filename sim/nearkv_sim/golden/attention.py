"""Golden model of attention in a processing unit: integer logits, weights and exact sums.

Everything is an integer. Where floats carry it, they hold every intermediate exactly, so BLAS and SIMD may
be used in any order: a product of two stored numbers has 22 significant bits (float32), a weight times a
stored number 27 (float64), and sums of integers stay below 2^53 (float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.attention import (
    DEFAULT_DEGREE,
    DOT,
    EMPTY_MAXIMUM,
    LOGIT,
    LOGIT_SCALE_FRACTION_BITS,
    PRODUCT,
    SUM,
    SUM_FRACTION_BITS,
    SUM_TOKENS,
    WEIGHT,
    ZERO_SHIFT,
    check_value_exponent,
    logit_scale,
)
from nearkv_sim.golden.exp import Exp2Polynomial
from nearkv_sim.golden.stored_rows import Float32, Rows, stored_values, value_exponent

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_CHUNK_TOKENS = 512  # rows worked on at a time: half a megabyte of float64 at head_dim 128 stays in cache
_FLOAT64_EXACT = 1 << 53


@dataclass(frozen=True)
class Partial:
    """Result of a shard for some query heads, before the division.

    Attributes:
        maximum: int64 [heads], the m the sums are relative to, as a logit (Q15.16).
        total: int64 [heads], l = Σ 2^(s−m) · 2^26.
        sums: int64 [heads, head_dim], o = Σ 2^(s−m)·v · 2^(26−E_V).

    """

    maximum: Int64
    total: Int64
    sums: Int64


@lru_cache
def weight_table(degree: int = DEFAULT_DEGREE) -> Int64:
    """m = 2^f as UQ1.15 for every f of 16 bits, from the polynomial of that degree."""
    return Exp2Polynomial(degree).mantissa(np.arange(1 << LOGIT.fraction_bits))


def dot_products(query: Float32, keys: Float32) -> Int64:
    """Σ_i rhu(q_i·k_i·2^16, 0) of every head and token: int64 [heads, tokens].

    ValueError where a sum does not fit signed 48 bits.
    """
    heads, head_dim = query.shape
    result = np.empty((heads, len(keys)), np.int64)
    scaled = query * np.float32(1 << PRODUCT.fraction_bits)
    largest = float(np.abs(scaled).max(initial=0)) * float(np.abs(keys).max(initial=0)) * head_dim
    # The rounded products are integers; float64 adds them exactly unless a sum could reach 2^53.
    sum_type = np.float64 if largest + head_dim < _FLOAT64_EXACT else np.int64
    ones = np.ones(head_dim, sum_type)
    for start in range(0, len(keys), _CHUNK_TOKENS):
        rows = keys[start : start + _CHUNK_TOKENS]
        for head in range(heads):
            # In float32 x + ½ rounds only where floor(x + ½) does not depend on it: 22-bit x below ¼ in
            # magnitude stays inside (0, 1), one from 2^23 on is an integer already.
            product = rows * scaled[head]
            product += np.float32(0.5)
            np.floor(product, out=product)
            result[head, start : start + len(rows)] = product.astype(sum_type) @ ones
    if result.size and not (result.min() >= DOT.min and result.max() <= DOT.max):
        raise ValueError(f"a dot product is {result.min()} to {result.max()}; allowed: signed 48 bit")
    return result


def logits(query: NDArray[np.float16], keys: Rows) -> tuple[Int32, int]:
    """Base-2 logits Q15.16 of every head and token, and how many were saturated.

    Args:
        query: float16 [heads, head_dim].
        keys: rows [tokens, head_dim].

    Returns:
        int32 [heads, tokens], and the number of saturated logits.

    """
    dots = dot_products(stored_values(query), stored_values(keys))
    # 2^40 times the smallest scale is far outside the range, and its product with the largest fits 63 bits.
    limit = 1 << 40
    scaled = rhu(np.clip(dots, -limit, limit) * logit_scale(query.shape[1]), LOGIT_SCALE_FRACTION_BITS)
    clipped = np.clip(scaled, LOGIT.min, LOGIT.max)
    return clipped.astype(np.int32), int((clipped != scaled).sum())


def shard_maximum(scores: Int32) -> Int64:
    """Integer running maximum of every head: max(s >> 16), −2^15 without tokens."""
    result: Int64 = (scores.max(axis=1, initial=LOGIT.min) >> LOGIT.fraction_bits).astype(np.int64)
    return np.maximum(result, EMPTY_MAXIMUM)


def weighted_sums(
    scores: Int32, values: Rows, maximum: Int64, exponent: int, degree: int = DEFAULT_DEGREE
) -> Partial:
    """Exact sums of a shard under a given integer maximum (phase 2).

    Args:
        scores: int32 [heads, tokens].
        values: rows [tokens, head_dim].
        maximum: int64 [heads], at least every score's integer part.
        exponent: E_V.
        degree: of the polynomial.

    Raises:
        ValueError: a value not below 2^E_V, a score above the maximum, more than 2^20 tokens.

    """
    check_value_exponent(exponent)
    heads, tokens = scores.shape
    if tokens > SUM_TOKENS:
        raise ValueError(f"shard has {tokens} tokens; allowed: up to {SUM_TOKENS}, for which 48 bits suffice")
    if value_exponent(values) > exponent:
        raise ValueError(
            f"values need value_exponent {value_exponent(values)}, given is {exponent};"
            " allowed: at least what they need"
        )
    numbers = stored_values(values)
    below = maximum[:, None] - (scores >> LOGIT.fraction_bits)
    if below.size and below.min() < 0:
        raise ValueError(f"a score lies {-below.min()} above maximum; allowed: none above")
    mantissas = weight_table(degree)[scores & ((1 << LOGIT.fraction_bits) - 1)]
    shift_to_sum = SUM_FRACTION_BITS - WEIGHT.fraction_bits
    total = rhu(mantissas << shift_to_sum, below, zero_above=ZERO_SHIFT).sum(axis=1)
    # m·sig·2^-(M−n+15+E_V−W−ex) = weight·v with weight = m·2^(W−15−E_V−(M−n)), exact in float64. A
    # product below ½ in magnitude is 0, whatever its shift, so far weights may be cut off early.
    near = below <= ZERO_SHIFT
    weights = np.ldexp((mantissas * near).astype(np.float64), shift_to_sum - exponent - below * near)
    sums = np.zeros((heads, numbers.shape[1]), np.float64)
    for start in range(0, tokens, _CHUNK_TOKENS):
        rows = numbers[start : start + _CHUNK_TOKENS].astype(np.float64)
        for head in range(heads):
            product = rows * weights[head, start : start + len(rows), None]
            product += 0.5
            np.floor(product, out=product)
            sums[head] += np.add.reduce(product, axis=0)
    return Partial(maximum << LOGIT.fraction_bits, total, sums.astype(np.int64))


def merge_exact(partials: Sequence[Partial]) -> Partial:
    """Add partials that share one maximum; ValueError if they do not, or if a sum exceeds 48 bits."""
    maximum = partials[0].maximum
    if any(not np.array_equal(p.maximum, maximum) for p in partials):
        raise ValueError("partials have different maxima; allowed: one global maximum per head")
    total: Int64 = np.sum([p.total for p in partials], axis=0)
    sums: Int64 = np.sum([p.sums for p in partials], axis=0)
    if total.size and max(int(total.max()), int(np.abs(sums).max(initial=0))) > SUM.max:
        raise ValueError(f"a sum exceeds signed 48 bits; allowed: up to {SUM_TOKENS} tokens")
    return Partial(maximum, total, sums)


def attend_exact(
    query: NDArray[np.float16],
    keys: Rows,
    values: Rows,
    exponent: int | None = None,
    degree: int = DEFAULT_DEGREE,
) -> Partial:
    """Both phases over one shard that holds every token."""
    scores, _ = logits(query, keys)
    exponent = value_exponent(values) if exponent is None else exponent
    return weighted_sums(scores, values, shard_maximum(scores), exponent, degree)
