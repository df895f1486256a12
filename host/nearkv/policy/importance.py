"""Importance of tokens by PAM's two rules: the paper's (arXiv 2602.11521) and the published article's."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.decay import decay_in_place

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class Heat(IntEnum):
    """What a token's importance makes of it; the order is that of falling importance."""

    HOT = 0
    WARM = 1
    COLD = 2


class ScoreImportance:
    """The paper's rule, at every step: I ← λ · score + (1 − λ) · I.

    The score is the attention weight, mean over the query heads; that of a token which was not selected
    counts as 0.

    Args:
        max_tokens: no token index reaches it.
        score_weight: λ, above 0 to 1; the paper's is 0.6.

    Raises ValueError for a λ out of range.

    """

    def __init__(self, max_tokens: int, score_weight: float = 0.6) -> None:
        """Start with importance 0."""
        if not 0 < score_weight <= 1:
            raise ValueError(f"score_weight is {score_weight}; allowed: above 0 to 1")
        self.score_weight = score_weight
        self.value: Float64 = np.zeros(max_tokens)
        self._steps = 0

    def update(self, selected: Int64, score: Float64) -> None:
        """Take in one step: `score` of the tokens `selected`, both [n]."""
        decay_in_place(self.value, 1 - self.score_weight, self._steps)
        self._steps += 1
        self.value[selected] += self.score_weight * score


class CountImportance:
    """The article's rule, at every evaluation: I ← decay · I + (1 − decay) · accesses since the last one.

    With accesses of a single step, at most 1, the importance would never exceed 1 and a threshold of 5 would
    be out of reach; so accesses are counted between evaluations. With 50 steps between them it tends to at
    most 50.

    Args:
        max_tokens: no token index reaches it.
        decay: 0 to below 1; the article's is 0.9.
        hot_threshold: importance above it is HOT; the article's is 5.0.
        warm_threshold: importance above it, up to the other, is WARM, the rest COLD; the article's is 1.0.

    Raises ValueError for a value out of range.

    """

    def __init__(
        self,
        max_tokens: int,
        decay: float = 0.9,
        hot_threshold: float = 5.0,
        warm_threshold: float = 1.0,
    ) -> None:
        """Start with importance 0."""
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; allowed: 0 to below 1")
        if not 0 <= warm_threshold <= hot_threshold:
            raise ValueError(
                f"warm_threshold is {warm_threshold}; allowed: 0 to hot_threshold, {hot_threshold}"
            )
        self.decay = decay
        self.hot_threshold = hot_threshold
        self.warm_threshold = warm_threshold
        self.value: Float64 = np.zeros(max_tokens)
        self.accesses: Int64 = np.zeros(max_tokens, np.int64)

    def count(self, selected: Int64) -> None:
        """Note one step's accesses, distinct token indices [n]."""
        self.accesses[selected] += 1

    def evaluate(self) -> NDArray[np.int8]:
        """Take the accesses since the last evaluation in; returns each token's `Heat`, [max_tokens]."""
        self.value = self.decay * self.value + (1 - self.decay) * self.accesses
        self.accesses[:] = 0
        heat = np.full(len(self.value), Heat.COLD, np.int8)
        heat[self.value > self.warm_threshold] = Heat.WARM
        heat[self.value > self.hot_threshold] = Heat.HOT
        return heat
