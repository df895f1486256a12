"""Golden model of the reduction: both merges, the tree that applies them, and the final division."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.attention import (
    DEFAULT_DEGREE,
    FP16_BIAS,
    FP16_EXPONENT_NAN,
    FP16_FRACTION_BITS,
    LOGIT,
    QUOTIENT_FRACTION_BITS,
    WEIGHT,
    Merge,
    check_value_exponent,
)
from nearkv_sim.golden.attention import Int64, Partial, merge_exact, weight_table

_FRACTION_MASK = (1 << LOGIT.fraction_bits) - 1


def rescaled(x: Int64, below: Int64, degree: int) -> Int64:
    """x · 2^−below with the factor from the polynomial: rhu(x · m(f), 15 − n), −below = n + f.

    Args:
        x: signed 48-bit sums [heads, …].
        below: int64 [heads], distance ≥ 0 of the partial's maximum from the merged one, Q16.16.
        degree: of the polynomial.

    """
    factor = weight_table(degree)[-below & _FRACTION_MASK]
    shift = WEIGHT.fraction_bits - (-below >> LOGIT.fraction_bits)
    extra = (1,) * (x.ndim - 1)
    # |x·m| < 2^63; from 64 on a shift leaves nothing.
    return rhu(x * factor.reshape(-1, *extra), shift.reshape(-1, *extra))


def merge_exponential(partials: Sequence[Partial], degree: int = DEFAULT_DEGREE) -> Partial:
    """m' = max m_i; every l_i and o_i rescaled by 2^(m_i − m') and added. l stays linear."""
    maximum = np.maximum.reduce([p.maximum for p in partials])
    return Partial(
        maximum,
        np.sum([rescaled(p.total, maximum - p.maximum, degree) for p in partials], axis=0),
        np.sum([rescaled(p.sums, maximum - p.maximum, degree) for p in partials], axis=0),
    )


def merge(partials: Sequence[Partial], kind: Merge, degree: int = DEFAULT_DEGREE) -> Partial:
    """Merge the partials of one reduction unit's children; their order does not matter.

    ValueError for none, and in an exact merge for partials under different maxima.
    """
    if not partials:
        raise ValueError("there are 0 partials; allowed: at least 1")
    return merge_exact(partials) if kind is Merge.EXACT else merge_exponential(partials, degree)


def reduce_tree(
    partials: Sequence[Partial], fan_ins: Sequence[int], kind: Merge, degree: int = DEFAULT_DEGREE
) -> Partial:
    """Merge level by level: consecutive groups of fan_ins[0] first, and so on up to one result.

    ValueError unless the fan-ins multiply to the number of partials.
    """
    level = list(partials)
    for fan_in in fan_ins:
        if fan_in < 1 or len(level) % fan_in:
            raise ValueError(f"fan_ins is {tuple(fan_ins)} for {len(partials)} partials; allowed: divisors")
        level = [merge(level[i : i + fan_in], kind, degree) for i in range(0, len(level), fan_in)]
    if len(level) != 1:
        raise ValueError(
            f"fan_ins is {tuple(fan_ins)} for {len(partials)} partials; allowed: their product is the number"
        )
    return level[0]


def rescale_running(partial: Partial, maximum: Int64) -> Partial:
    """Move a partial to a higher integer maximum: l and o by rhu(x, ΔM), what a unit does between blocks."""
    rise = (maximum << LOGIT.fraction_bits) - partial.maximum >> LOGIT.fraction_bits
    return replace(
        partial,
        maximum=maximum << LOGIT.fraction_bits,
        total=rhu(partial.total, rise),
        sums=rhu(partial.sums, rise[:, None]),
    )


def divide(partial: Partial, exponent: int) -> NDArray[np.float16]:
    """o · 2^E_V / l, correctly rounded to FP16 nearest-even; 0 where l is 0 (a job without tokens).

    Args:
        partial: sums, |o| < 2·l wherever l > 0.
        exponent: E_V.

    Returns:
        float16 [heads, head_dim]; what rounds beyond the largest finite number becomes Inf.

    """
    check_value_exponent(exponent)
    numerator = np.abs(partial.sums)
    denominator = np.broadcast_to(partial.total[:, None], numerator.shape)
    # Normalise both to the same leading position, so that the quotient lies in (½, 2).
    top = 48
    n_shift, d_shift = top - _bit_length(numerator), top - _bit_length(denominator)
    remainder = numerator << n_shift
    divisor = np.where(denominator == 0, 1, denominator << d_shift)
    quotient = np.zeros_like(remainder)
    for _ in range(QUOTIENT_FRACTION_BITS + 1):  # restoring division, one bit a step
        bit = (remainder >= divisor).astype(np.int64)
        quotient = (quotient << 1) | bit
        remainder = (remainder - bit * divisor) << 1
    sticky = (remainder != 0).astype(np.int64)
    # value = quotient · 2^unit, and sticky says that it is a little more.
    unit = exponent + d_shift - n_shift - QUOTIENT_FRACTION_BITS
    lsb = np.maximum(_bit_length(quotient) + unit - (FP16_FRACTION_BITS + 1), 1 - FP16_BIAS)
    drop = np.minimum(lsb - unit, QUOTIENT_FRACTION_BITS + 3)
    doubled = (quotient << 1) | sticky  # one more bit, so that "more than half" shows
    kept = doubled >> (drop + 1)
    rest, half = doubled & ((np.int64(1) << (drop + 1)) - 1), np.int64(1) << drop
    kept += (rest > half) | ((rest == half) & (kept & 1 == 1))
    # Adding the exponent to the significand carries into it: 2048 becomes 1024 of the next binade.
    field = np.where(kept >= 1 << FP16_FRACTION_BITS, lsb + FP16_BIAS - 1, 0)
    bits = np.minimum((field << FP16_FRACTION_BITS) + kept, FP16_EXPONENT_NAN << FP16_FRACTION_BITS)
    bits = np.where((numerator == 0) | (denominator == 0), 0, bits | ((partial.sums < 0) << 15))
    return bits.astype(np.uint16).view(np.float16)


def _bit_length(x: Int64) -> Int64:
    """Position of the leading one, 0 for 0; exact, since x < 2^53."""
    result: Int64 = np.frexp(x.astype(np.float64))[1].astype(np.int64)
    return result
