"""First in, first out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo


class Fifo(Policy):
    """Evicts the token that became hot longest ago, however often it was used since.

    A token enters when it is written, and again each time it was accessed while it was cold; several in one
    step enter in ascending order. Nothing is read ahead.
    """

    def __init__(self, stream: StreamInfo) -> None:
        """Start with no token known."""
        super().__init__(stream)
        self._entered: NDArray[np.int32] = np.zeros(stream.max_tokens, np.int32)
        self._known_tokens = 0

    def place(self, seen: Observation) -> Mask:
        """Stamp what was written or fetched, keep the latest of what is at hand."""
        now = seen.step + 1
        self._entered[self._known_tokens : seen.tokens] = now
        self._known_tokens = seen.tokens
        accessed = seen.accessed()
        self._entered[accessed[~seen.hot[accessed]]] = now
        return seen.fill(self._entered[: seen.sealed_tokens], among=seen.at_hand())
