"""Predicts the next step's accesses with a small linear model that learns as it goes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Float64, Mask, Observation, Policy, StreamInfo, TokenIndex
from nearkv.policy.decay import decay_in_place

Float32 = NDArray[np.float32]

_DECAYS = (0.5, 0.9, 0.99)  # of the access averages: about 2, 10 and 100 steps
_MASS_SCALE = 1 / 8  # brings log1p(weight · tokens), up to about 10, to the size of the others
_DISTANCE_SCALE = 1 / 20  # log2 of the distance is at most 20 at a million tokens
_FEATURES = ("constant", "access .5", "access .9", "access .99", "last mass", "last use", "distance")
_PRIOR = np.array([0, 0, 1, 0, 0, 0, 0], np.float64)  # before it has learned: the average over ten steps


class Learned(Policy):
    """Keeps the tokens that a linear model, trained after every step, expects to be accessed next.

    Features of a token: averages of its accesses with three decays, log of its attention in the last step,
    1/(1 + steps since its last use), log of its distance to the newest token, and 1. After a step the model
    sees, for a random sample of tokens, the features from before it and whether the step accessed them:
    ridge regression w = (A + rI)⁻¹(b + r·prior) with A ← forget · A + XᵀX/n, b ← forget · b + Xᵀy/n. It
    starts as the average with decay 0.9. The sample follows from the seed. Tokens it expects to be accessed
    are read ahead.

    Args:
        stream: the stream served.
        forget: weight of earlier steps, 0 to below 1.
        ridge: r, above 0: pull towards the prior, in steps.
        sample_tokens: tokens it learns from in a step, at least 1.

    Raises ValueError for an option out of range.

    """

    def __init__(
        self, stream: StreamInfo, forget: float = 0.98, ridge: float = 0.01, sample_tokens: int = 4096
    ) -> None:
        """Start with the prior's weights and no access seen."""
        super().__init__(stream)
        if not 0 <= forget < 1:
            raise ValueError(f"forget is {forget}; allowed: 0 to below 1")
        if not 0 < ridge < math.inf:
            raise ValueError(f"ridge is {ridge}; allowed: above 0")
        if sample_tokens < 1:
            raise ValueError(f"sample_tokens is {sample_tokens}; allowed: 1 or more")
        self.forget = forget
        self.ridge = ridge
        self.sample_tokens = sample_tokens
        self.weights: Float64 = _PRIOR.copy()
        self._moment: Float64 = np.zeros((len(_FEATURES), len(_FEATURES)))
        self._response: Float64 = np.zeros(len(_FEATURES))
        self._average: Float32 = np.zeros((len(_DECAYS), stream.max_tokens), np.float32)
        self._mass: Float32 = np.zeros(stream.max_tokens, np.float32)
        self._last_use: Float32 = np.full(stream.max_tokens, -np.inf, np.float32)
        self._log_distance: Float32 = np.log2(np.arange(1, stream.max_tokens + 1, dtype=np.float32))
        self._tokens = 0  # in context at the last step

    def place(self, seen: Observation) -> Mask:
        """Learn from what the step accessed, take it in, keep what is expected next."""
        if self._tokens and seen.step >= 0:
            self._learn(seen)
        known = slice(seen.tokens)
        for average, decay in zip(self._average, _DECAYS, strict=True):
            decay_in_place(average[known], decay, seen.step)
            average[seen.selected] += np.float32(1 - decay)
        self._mass[known] = 0
        self._mass[seen.selected] = _MASS_SCALE * np.log1p(seen.weight * seen.tokens)
        self._last_use[seen.selected] = seen.step
        self._tokens = seen.tokens
        return seen.fill(self._expected(seen.sealed_tokens, seen.step))

    def _learn(self, seen: Observation) -> None:
        sample = self.rng.integers(self._tokens, size=self.sample_tokens)
        accessed = np.zeros(seen.tokens, np.bool_)
        accessed[seen.selected] = True
        features = self._features(sample, seen.step - 1)  # nothing of this step has been taken in yet
        share = 1 / self.sample_tokens
        self._moment = self.forget * self._moment + share * (features @ features.T)
        self._response = self.forget * self._response + share * (features @ accessed[sample])
        pull = self.ridge * np.eye(len(_FEATURES))
        weights = np.linalg.solve(self._moment + pull, self._response + pull @ _PRIOR)
        self.weights = np.asarray(weights, np.float64)

    def _features(self, tokens: TokenIndex, step: int) -> Float64:
        """Features of some tokens after `step`: float64 [features, tokens]."""
        return np.stack(
            [
                np.ones(len(tokens)),
                *self._average[:, tokens],
                self._mass[tokens],
                1 / (1 + step - self._last_use[tokens]),
                self._log_distance[self._tokens - 1 - tokens] * _DISTANCE_SCALE,
            ]
        )

    def _expected(self, tokens: int, step: int) -> Float32:
        """The model's value of tokens 0 … tokens−1 but for the constant: float32 [tokens]."""
        _, *by_average, by_mass, by_use, by_distance = self.weights.astype(np.float32)
        value: Float32 = self._mass[:tokens] * by_mass
        for average, weight in zip(self._average, by_average, strict=True):
            value += average[:tokens] * weight
        value += by_use / (np.float32(1 + step) - self._last_use[:tokens])
        log_distance = self._log_distance[self._tokens - tokens : self._tokens][::-1]
        value += log_distance * np.float32(by_distance * _DISTANCE_SCALE)
        return value
