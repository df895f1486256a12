"""Formats of a query head's score statistics: the maximum, and the sum of 2^(s·2^-L) in two exact parts.

With x = s·2^-L = k + f, k an integer, 0 <= f < 1, token t weighs 2^k · m(f), m from the exp polynomial. The
binades are grouped by 32: k = 32·g + p. With T the highest group of any token,

    upper = Σ over g = T of m·2^p,    lower = Σ over g = T − 1 of m·2^p,
    Σ_t 2^x ≈ (upper + lower·2^-32) · 2^(32·T).

Which group a token counts in depends on that token and T alone, and both parts are sums of integers, so they
do not depend on the order of tokens or on how a job was cut into tiles.
"""

from __future__ import annotations

from nearkv_hdl.spec.attention import SUM_TOKENS, WEIGHT
from nearkv_hdl.spec.formats import Format, Overflow, Rounding

# L, the fraction bits of a head's scores.
SCORE_FRACTION_BITS = Format(6, signed=True, overflow=Overflow.ERROR)
MIN_SCORE_FRACTION_BITS = -24
MAX_SCORE_FRACTION_BITS = 24

GROUP_BITS = 5
GROUP_BINADES = 1 << GROUP_BITS  # binades of a group; what lies a whole group below the lower one is dropped

# Three bits less than the polynomial gives, so that 2^20 tokens of the largest weight fit 64 bits.
TOKEN_WEIGHT = Format(13, signed=False, fraction_bits=12, rounding=Rounding.FLOOR)
DROPPED_WEIGHT_BITS = WEIGHT.fraction_bits - TOKEN_WEIGHT.fraction_bits
SHIFTED_WEIGHT = Format(TOKEN_WEIGHT.width + GROUP_BINADES - 1, signed=False, fraction_bits=12)
GROUP_SUM = Format(64, signed=False, fraction_bits=12)
STATISTICS_TOKENS = SUM_TOKENS  # of a job, for which GROUP_SUM is proven to suffice

# .21 % relative error of the sum, .003 of its logarithm: a third fewer multipliers than degree 3.
STATISTICS_DEGREE = 2


def check_score_fraction_bits(value: int) -> int:
    """Return L; ValueError unless it lies in −24…24."""
    if not MIN_SCORE_FRACTION_BITS <= value <= MAX_SCORE_FRACTION_BITS:
        raise ValueError(
            f"fraction_bits is {value}; allowed: {MIN_SCORE_FRACTION_BITS} to {MAX_SCORE_FRACTION_BITS}"
        )
    return value
