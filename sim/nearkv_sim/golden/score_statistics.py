"""Golden model of score statistics: maximum and exact group sums of whole score arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nearkv.codec.score_merge import HeadStatistics, empty_statistics
from nearkv_hdl.spec.attention import LOGIT
from nearkv_hdl.spec.formats import SCORE
from nearkv_hdl.spec.score_statistics import (
    DROPPED_WEIGHT_BITS,
    GROUP_BINADES,
    GROUP_BITS,
    STATISTICS_DEGREE,
    STATISTICS_TOKENS,
)
from nearkv_sim.golden.exp import Exp2Polynomial, check_range

Int64 = npt.NDArray[np.int64]


class ScoreStatistics:
    """Twin of `nearkv_hdl.attention.score_statistics.ScoreStatistics`.

    Args:
        degree: of the polynomial, 2 to 6.

    """

    def __init__(self, degree: int = STATISTICS_DEGREE) -> None:
        # All fractions at once: a table is faster than the polynomial of every score.
        self.weights = Exp2Polynomial(degree).mantissa(np.arange(1 << LOGIT.fraction_bits))
        self.weights >>= DROPPED_WEIGHT_BITS

    def evaluate(self, scores: npt.ArrayLike, fraction_bits: npt.ArrayLike) -> HeadStatistics:
        """Statistics of a job.

        Args:
            scores: signed 32-bit integers [tokens, heads].
            fraction_bits: integers [heads], L of every head.

        Raises:
            ValueError: a score beyond 32 bits, an L outside −24…24, more than 2^20 tokens.

        """
        s = check_range("scores", scores, SCORE)
        bits = np.asarray(fraction_bits, np.int64)
        if len(s) > STATISTICS_TOKENS:
            raise ValueError(f"job has {len(s)} tokens; allowed: up to {STATISTICS_TOKENS}")
        empty = empty_statistics(bits)
        if not len(s):
            return empty
        right, left = np.maximum(bits, 0), np.maximum(-bits, 0)
        binade = (s >> right) << left
        fraction = (s << LOGIT.fraction_bits) >> right & ((1 << LOGIT.fraction_bits) - 1)
        weight = np.where(bits >= 0, self.weights[fraction], self.weights[0])
        group = binade >> GROUP_BITS
        top = group.max(axis=0)
        # Far groups are zeroed before the shift is applied; the sums fit 64 bits, see GROUP_SUM.
        shifted = (weight << (binade & (GROUP_BINADES - 1))).astype(np.uint64)
        upper, lower = (
            np.where(group == wanted, shifted, np.uint64(0)).sum(axis=0, dtype=np.uint64)
            for wanted in (top, top - 1)
        )
        return HeadStatistics(bits, s.max(axis=0), upper, lower)
