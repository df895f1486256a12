"""Least frequently used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo

_COUNT_SHIFT = 32  # priority = count, then last use
_NEWCOMER = np.int64(1) << 62


class Lfu(Policy):
    """Evicts the token used least often since it became hot; among equals the one used longest ago.

    The textbook's cache: a token that was fetched is always admitted, with a count of 1, and its count is
    lost with its hot copy. The fetches of one step are one request: room for all of them is made among the
    others first. Being written counts as a use. Nothing is read ahead.
    """

    def __init__(self, stream: StreamInfo) -> None:
        """Start with no token known."""
        super().__init__(stream)
        self._uses: NDArray[np.int64] = np.zeros(stream.max_tokens, np.int64)
        self._last_use: NDArray[np.int64] = np.zeros(stream.max_tokens, np.int64)
        self._known_tokens = 0

    def place(self, seen: Observation) -> Mask:
        """Count uses, keep the most used of what is at hand beside what was fetched."""
        now = seen.step + 1
        written = slice(self._known_tokens, seen.tokens)
        self._uses[written], self._last_use[written] = 1, now
        self._known_tokens = seen.tokens
        accessed = seen.accessed()
        fetched = accessed[~seen.hot[accessed]]
        self._uses[fetched] = 0
        self._uses[seen.selected] += 1
        self._last_use[seen.selected] = now
        sealed = slice(seen.sealed_tokens)
        priority = (self._uses[sealed] << _COUNT_SHIFT) + self._last_use[sealed]
        priority[fetched] += _NEWCOMER
        return seen.fill(priority, among=seen.at_hand())
