"""Statistics of query heads: merged over tiles exactly, and used to make scores of different heads compare.

A head's scores are base-2 logits s·2^-L. A token's softmax weight is 2^(s·2^-L) / Σ 2^(s·2^-L); the hardware
returns the maximum and the sum in the two parts of `nearkv_hdl.spec.score_statistics`. Everything here is
integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.attention import LOGIT
from nearkv_hdl.spec.formats import SCORE
from nearkv_hdl.spec.score_statistics import (
    GROUP_BINADES,
    GROUP_BITS,
    GROUP_SUM,
    check_score_fraction_bits,
)

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

_LOG2_BITS = 128  # of the number that is squared; far more than 16 squarings lose


@dataclass(frozen=True)
class HeadStatistics:
    """Maximum and sum of some query heads over the tokens of a job or tile.

    Attributes:
        fraction_bits: int64 [heads], L in −24…24.
        maximum: int64 [heads], the largest score, in the scores' own unit 2^-L; −2^31 without tokens.
        upper: uint64 [heads], Σ of weights in the group of 32 binades that holds the maximum, unit 2^-12 of
            the group's lowest power of two; 0 without tokens.
        lower: uint64 [heads], the same of the group below.

    """

    fraction_bits: Int64
    maximum: Int64
    upper: UInt64
    lower: UInt64

    def __post_init__(self) -> None:
        """Check shapes and L."""
        shapes = {self.fraction_bits.shape, self.maximum.shape, self.upper.shape, self.lower.shape}
        if len(shapes) != 1 or self.maximum.ndim != 1:
            raise ValueError(f"statistics have shapes {sorted(shapes)}; allowed: [heads], four times")
        for value in self.fraction_bits.tolist():
            check_score_fraction_bits(value)


def empty_statistics(fraction_bits: Int64) -> HeadStatistics:
    """Of no tokens: what every merge leaves unchanged."""
    heads = len(fraction_bits)
    none = np.zeros(heads, np.uint64)
    return HeadStatistics(fraction_bits, np.full(heads, SCORE.min, np.int64), none, none)


def group_of(scores: Int64, fraction_bits: Int64) -> Int64:
    """Group of 32 binades that s·2^-L lies in: floor(s·2^-(L+5)), elementwise."""
    shift = fraction_bits + GROUP_BITS
    return np.where(shift >= 0, scores >> np.maximum(shift, 0), scores << np.maximum(-shift, 0))


def merge_statistics(tiles: Sequence[HeadStatistics]) -> HeadStatistics:
    """Statistics of all tiles' tokens together, bit-identical to those of one job over them, in any order.

    The highest group T of any tile stays: upper parts of T are added to upper, lower parts of T and upper
    parts of T − 1 to lower, everything else lies below both groups and is dropped, as it would have been.

    Raises:
        ValueError: no tile, tiles of different L, a sum beyond 64 bits (more than 2^20 tokens).

    """
    if not tiles:
        raise ValueError("0 tiles; allowed: from 1")
    fraction_bits = tiles[0].fraction_bits
    for tile in tiles:
        if not np.array_equal(tile.fraction_bits, fraction_bits):
            raise ValueError(
                f"fraction_bits are {fraction_bits.tolist()} and {tile.fraction_bits.tolist()};"
                " allowed: the same in all tiles"
            )
    maximum: Int64 = np.max([tile.maximum for tile in tiles], axis=0)
    top = group_of(maximum, fraction_bits)
    upper, lower = [0] * len(maximum), [0] * len(maximum)
    for tile in tiles:
        below = top - group_of(tile.maximum, fraction_bits)
        for head, distance in enumerate(below.tolist()):
            if distance == 0:
                upper[head] += int(tile.upper[head])
                lower[head] += int(tile.lower[head])
            elif distance == 1:
                lower[head] += int(tile.upper[head])
    largest = max([*upper, *lower], default=0)
    if largest > GROUP_SUM.max:
        raise ValueError(f"a sum is {largest}; allowed: below 2^{GROUP_SUM.width}, so at most 2^20 tokens")
    return HeadStatistics(fraction_bits, maximum, np.array(upper, np.uint64), np.array(lower, np.uint64))


def log2_fixed(value: int) -> int:
    """floor(2^16 · log2(value)) of a positive integer, by squaring 128 bits sixteen times.

    The mantissa is cut to 128 bits at every step, so a logarithm less than 2^-100 above a multiple of 2^-16
    may come out as the one below.
    """
    if value < 1:
        raise ValueError(f"value is {value}; allowed: from 1")
    result = value.bit_length() - 1
    mantissa = (value << _LOG2_BITS) >> (result + 1)  # in [½, 1) of 2^128
    for _ in range(LOGIT.fraction_bits):
        mantissa = (mantissa * mantissa) >> _LOG2_BITS  # in [¼, 1)
        bit = mantissa >> (_LOG2_BITS - 1)
        mantissa <<= 1 - bit
        result = 2 * result + bit
    return result


def log2_excess(statistics: HeadStatistics) -> Int64:
    """log2 of Σ 2^(s−M)·2^-L, Q15.16, int64 [heads]: how far the sum lies above its largest term.

    From the integers as they are: log2(upper·2^32 + lower) − 44 − (M·2^-L mod 32), the logarithm and the
    remainder each rounded down to 2^-16. 0 for a head without tokens.
    """
    result = np.zeros(len(statistics.maximum), np.int64)
    one_group = GROUP_BINADES << LOGIT.fraction_bits
    parts = (statistics.upper, statistics.lower, statistics.maximum, statistics.fraction_bits)
    for head, (upper, lower, maximum, bits) in enumerate(zip(*(p.tolist() for p in parts), strict=True)):
        total = (upper << GROUP_BINADES) + lower
        if total:
            logarithm = log2_fixed(total) - ((GROUP_BINADES + GROUP_SUM.fraction_bits) << LOGIT.fraction_bits)
            scaled = maximum << LOGIT.fraction_bits
            scaled = scaled >> bits if bits >= 0 else scaled << -bits
            result[head] = logarithm - scaled % one_group
    return result


def normalise_scores(scores: Int64, statistics: HeadStatistics) -> Int64:
    """log2 of every token's softmax weight in its head, so that heads compare and may be merged.

    Formula: rhu((s − M)·2^16, L) − log2_excess, saturated to Q15.16. Within a head it keeps the order of
    scores (those closer than 2^-16 may tie).
    Error: ½·2^-16 of the first rounding, 2·2^-16 of `log2_excess`, and log2 of the sum's own relative error:
    .21 % of the polynomial, .03 % of roundings and N·2^-32 of dropped tokens, together below .0035 + N·2^-31.

    Args:
        scores: int64 [tokens, heads], unit 2^-L.
        statistics: of these tokens, or of more.

    Returns:
        int64 [tokens, heads], Q15.16.

    Raises:
        ValueError: a score above its head's maximum, shapes that do not match.

    """
    if scores.ndim != 2 or scores.shape[1] != len(statistics.maximum):
        raise ValueError(
            f"scores are {list(scores.shape)} with {len(statistics.maximum)} heads; allowed: [tokens, heads]"
        )
    below = scores - statistics.maximum
    if below.size and below.max() > 0:
        raise ValueError(f"a score lies {below.max()} above its head's maximum; allowed: none above")
    dropped = statistics.fraction_bits - LOGIT.fraction_bits
    # Cut off where the result saturates anyway, so that what is shifted left fits 64 bits.
    lowest = np.where(dropped < 0, LOGIT.min >> np.maximum(-dropped, 0), 2 * SCORE.min)
    scaled = rhu(np.maximum(below, lowest), dropped)
    result: Int64 = np.clip(scaled - log2_excess(statistics), LOGIT.min, LOGIT.max)
    return result
