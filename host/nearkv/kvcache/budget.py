"""How many tokens may be hot, and which of them have to be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from nearkv.kvcache.hot_pool import Mask


def share_floor(fraction: float, tokens: int) -> int:
    """floor(fraction · tokens), exact for the decimal number as written (0.07 · 100 is 7)."""
    return math.floor(Fraction(str(fraction)) * tokens)


def share_ceil(fraction: float, tokens: int) -> int:
    """ceil(fraction · tokens), exact for the decimal number as written."""
    return math.ceil(Fraction(str(fraction)) * tokens)


@dataclass(frozen=True)
class HotBudget:
    """Size and pins of one stream's hot pool, as shares of the context.

    Attributes:
        hot_fraction: share of the context that may be hot, tail included. The tail is hot in any case, so
            a pool smaller than it holds just the tail.
        recent_fraction: newest share of the context that must be hot, tail included.
        sinks: first tokens that must be hot.

    """

    hot_fraction: float
    recent_fraction: float
    sinks: int

    def capacity_tokens(self, tokens: int, sealed_tokens: int) -> int:
        """Sealed tokens that may be hot in a context of `tokens`: what the tail leaves of the pool."""
        free = share_floor(self.hot_fraction, tokens) - (tokens - sealed_tokens)
        return min(max(free, 0), sealed_tokens)

    def pinned(self, tokens: int, sealed_tokens: int) -> Mask:
        """Sealed tokens that must be hot, bool [sealed_tokens]: sinks, then the newest that fit."""
        capacity = self.capacity_tokens(tokens, sealed_tokens)
        sinks = min(self.sinks, capacity)
        recent = share_floor(self.recent_fraction, tokens) - (tokens - sealed_tokens)
        pinned = np.zeros(sealed_tokens, np.bool_)
        pinned[:sinks] = True
        pinned[sealed_tokens - min(max(recent, 0), capacity - sinks) :] = True
        return pinned
