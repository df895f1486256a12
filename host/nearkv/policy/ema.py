"""Exponential moving averages of accesses and of attention mass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo
from nearkv.policy.decay import decay_in_place


class _Ema(Policy):
    """Keeps the tokens of largest average, where a step's value counts 1 − decay."""

    def __init__(self, stream: StreamInfo, decay: float = 0.9) -> None:
        super().__init__(stream)
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; allowed: 0 to below 1")
        self.decay = decay
        self.average: NDArray[np.float32] = np.zeros(stream.max_tokens, np.float32)

    def _update(self, seen: Observation, value: float | NDArray[np.float64]) -> Mask:
        decay_in_place(self.average[: seen.tokens], self.decay, seen.step)
        self.average[seen.selected] += np.float32(1 - self.decay) * value
        return seen.fill(self.average[: seen.sealed_tokens])


class EmaAccess(_Ema):
    """Keeps the tokens accessed most often of late: a ← decay · a + (1 − decay) · accessed.

    Tokens accessed alike are ranked by age, the newer first.

    Args:
        stream: the stream served.
        decay: 0 (the last step alone) to below 1; 0.9 remembers about ten steps.

    Raises ValueError for a decay out of range.

    """

    def place(self, seen: Observation) -> Mask:
        """Average the accesses, keep the largest."""
        return self._update(seen, 1.0)


class EmaMass(_Ema):
    """Keeps the tokens attended most of late: a ← decay · a + (1 − decay) · attention weight.

    The weight of a token that was not selected counts as 0: nobody computed it.

    Args:
        stream: the stream served.
        decay: 0 (the last step alone) to below 1; 0.9 remembers about ten steps.

    Raises ValueError for a decay out of range.

    """

    def place(self, seen: Observation) -> Mask:
        """Average the weights, keep the largest."""
        return self._update(seen, seen.weight)
