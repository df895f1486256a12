"""HillInfer's placement (arXiv 2602.18750): pins, a hit-rate table of two bytes per token, equal swaps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo, TokenIndex
from nearkv.policy.ranking import highest, top_lowest_index

RATE_MAX = (1 << 16) - 1  # 2 bytes per token: 64 KB at 32K tokens, HillInfer's bound
MAX_DECAY_SHIFT = 15


class Hill(Policy):
    """HillInfer: sinks and recent tokens pinned, the rest by a hit-rate table, equal-volume swaps.

    The table holds one uint16 per token. A step decays every rate by rate >> decay_shift and adds to each
    selected token (65535 >> decay_shift), saturating at 65535: the rate is the share of recent steps that
    selected the token, in 1/65535, over a window of about 2^decay_shift steps. With decay_shift 0 it is a
    plain count of hits that never decays. The paper does not publish its rule; 3 measures best on the
    trace in data/ (hit rate over its 256 steps .887; 2 gives .884, 4 .886, 6 .874, the plain count .858).

    After each step the pool is first fitted to its capacity (coldest out, or hottest in), then the hottest
    cold tokens replace the coldest unpinned hot ones, one for one, while the newcomer's rate is above the
    other's by more than `surge`. Ties leave the older token out and the newer one in.

    Args:
        stream: the stream served.
        decay_shift: 0 (undecayed count) to 15.
        surge: how far a newcomer's rate has to exceed the other's, in hits (what one selection adds), 0 to
            65535; at 0 any difference is enough.

    Raises ValueError for an option out of range.

    """

    def __init__(self, stream: StreamInfo, decay_shift: int = 3, surge: float = 0.0) -> None:
        """Start with an empty table of stream.max_tokens entries."""
        super().__init__(stream)
        if not 0 <= decay_shift <= MAX_DECAY_SHIFT:
            raise ValueError(f"decay_shift is {decay_shift}; allowed: 0 to {MAX_DECAY_SHIFT}")
        if not 0 <= surge <= RATE_MAX:
            raise ValueError(f"surge is {surge}; allowed: 0 to {RATE_MAX}")
        self.decay_shift = decay_shift
        self.hit_gain = RATE_MAX >> decay_shift if decay_shift else 1
        self.surge = surge * self.hit_gain
        self.rate: NDArray[np.uint16] = np.zeros(stream.max_tokens, np.uint16)

    def place(self, seen: Observation) -> Mask:
        """Update the table, fit the pool to its capacity, swap equal volumes."""
        self._count_hits(seen)
        rate = self.rate[: seen.sealed_tokens].astype(np.int32)
        return self._swap(self._fit(seen, rate), rate, seen.pinned)

    def _count_hits(self, seen: Observation) -> None:
        known = self.rate[: seen.tokens]
        if self.decay_shift:
            known -= known >> self.decay_shift
        grown = known[seen.selected].astype(np.int32) + self.hit_gain
        known[seen.selected] = np.minimum(grown, RATE_MAX)

    def _best(self, rate: NDArray[np.int32], count: int) -> TokenIndex:
        """The `count` tokens of highest rate; ties to the newer token."""
        return highest(rate, count)

    def _fit(self, seen: Observation, rate: NDArray[np.int32]) -> Mask:
        """The pool as it is, with the pinned tokens, made to hold exactly what it may."""
        hot = seen.hot | seen.pinned
        missing = min(seen.capacity_tokens, seen.sealed_tokens) - int(hot.sum())
        if missing > 0:
            cold = np.flatnonzero(~hot)
            hot[cold[self._best(rate[cold], missing)]] = True
        elif missing < 0:
            loose = np.flatnonzero(hot & ~seen.pinned)
            hot[loose] = False
            hot[loose[self._best(rate[loose], len(loose) + missing)]] = True
        return hot

    def _swap(self, hot: Mask, rate: NDArray[np.int32], pinned: Mask) -> Mask:
        """Replace the coldest unpinned hot tokens by the hottest cold ones, one for one."""
        loose, cold = np.flatnonzero(hot & ~pinned), np.flatnonzero(~hot)
        pairs = min(len(loose), len(cold))
        leaving = loose[top_lowest_index(-rate[loose], pairs)]
        arriving = cold[highest(rate[cold], pairs)]
        leaving = leaving[np.argsort(rate[leaving], kind="stable")]
        arriving = arriving[::-1][np.argsort(-rate[arriving][::-1], kind="stable")]
        # Along the pairs arriving rates fall and leaving rates rise: the worthwhile swaps come first.
        swaps = int((rate[arriving] > rate[leaving] + self.surge).sum())
        hot[leaving[:swaps]] = False
        hot[arriving[:swaps]] = True
        return hot


class HillSeedLiteral(Hill):
    """Hill with the published pseudo-code's `new_tokens[:α·len]`, which keeps the oldest of the new tokens.

    The text around that line wants the most recent ones kept; this class shows what the line does. It
    differs from `Hill` where rates are equal, as those of new tokens are: the older token stays.
    """

    def _best(self, rate: NDArray[np.int32], count: int) -> TokenIndex:
        """The `count` tokens of highest rate; ties to the older token."""
        return top_lowest_index(rate, count)
