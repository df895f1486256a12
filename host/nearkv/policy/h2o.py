"""Heavy hitters by accumulated attention (H2O, arXiv 2306.14048)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo
from nearkv.policy.decay import decay_in_place


class H2o(Policy):
    """Keeps the newest tokens in a grace window, and the tokens of most accumulated attention.

    A new token starts with nothing accumulated. Without a grace window it is the least of all and goes at
    once, so that the kept set freezes as soon as the pool is full. The paper splits the budget evenly
    between recent tokens and heavy hitters; the window counts the newest sealed tokens, pinned ones
    included. Only selected tokens gather attention: nobody computed the others' weights.

    Args:
        stream: the stream served.
        grace_fraction: share of the capacity for the newest sealed tokens, 0 to 1.
        decay: factor on what was accumulated before each step, above 0 to 1; the paper's 1 never forgets.

    Raises ValueError for an option out of range.

    """

    def __init__(self, stream: StreamInfo, grace_fraction: float = 0.5, decay: float = 1.0) -> None:
        """Start with nothing accumulated."""
        super().__init__(stream)
        if not 0 <= grace_fraction <= 1:
            raise ValueError(f"grace_fraction is {grace_fraction}; allowed: 0 to 1")
        if not 0 < decay <= 1:
            raise ValueError(f"decay is {decay}; allowed: above 0 to 1")
        self.grace_fraction = grace_fraction
        self.decay = decay
        self.mass: NDArray[np.float64] = np.zeros(stream.max_tokens)

    def place(self, seen: Observation) -> Mask:
        """Accumulate the weights; keep the grace window, then the heaviest."""
        if self.decay < 1:
            decay_in_place(self.mass[: seen.tokens], self.decay, seen.step)
        self.mass[seen.selected] += seen.weight
        priority = self.mass[: seen.sealed_tokens].copy()
        grace = math.floor(self.grace_fraction * seen.capacity_tokens)
        priority[max(seen.sealed_tokens - grace, 0) :] = np.finfo(np.float64).max
        return seen.fill(priority)
