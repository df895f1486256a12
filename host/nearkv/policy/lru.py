"""Least recently used."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo


class Lru(Policy):
    """Evicts the token whose last use is longest ago, and admits every token that was fetched.

    Being written counts as a use. Accesses of one step count in ascending order of token. Nothing is read
    ahead: a token becomes hot only when it was accessed anyway.
    """

    def __init__(self, stream: StreamInfo) -> None:
        """Start with no token known."""
        super().__init__(stream)
        self._last_use: NDArray[np.int32] = np.zeros(stream.max_tokens, np.int32)
        self._known_tokens = 0

    def place(self, seen: Observation) -> Mask:
        """Stamp what was written or accessed, keep the latest of what is at hand."""
        now = seen.step + 1
        self._last_use[self._known_tokens : seen.tokens] = now
        self._known_tokens = seen.tokens
        self._last_use[seen.selected] = now
        return seen.fill(self._last_use[: seen.sealed_tokens], among=seen.at_hand())
