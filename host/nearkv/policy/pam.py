"""PAM's importance (arXiv 2602.11521) as a placement in two tiers, by two rules."""

from __future__ import annotations

import numpy as np

from nearkv.policy.base import Float64, Mask, Observation, Policy, StreamInfo
from nearkv.policy.importance import CountImportance, Heat, ScoreImportance


class Pam(Policy):
    """Keeps the tokens of highest importance by PAM's paper: I ← λ · attention + (1 − λ) · I.

    A token moves only where that improves the pool: among equals the hot one stays. Between evaluations
    nothing is promoted; what no longer fits leaves by importance.

    Args:
        stream: the stream served.
        score_weight: λ, above 0 to 1; the paper's is 0.6.
        interval_steps: decode steps from one evaluation to the next; the paper evaluates every step.

    Raises ValueError for an option out of range.

    """

    def __init__(self, stream: StreamInfo, score_weight: float = 0.6, interval_steps: int = 1) -> None:
        """Start with importance 0."""
        super().__init__(stream)
        self.importance = ScoreImportance(stream.max_tokens, score_weight)
        self.interval_steps = _checked_interval(interval_steps)

    def place(self, seen: Observation) -> Mask:
        """Take the step in; at an evaluation exchange tokens with the cold tier."""
        self.importance.update(seen.selected, seen.weight)
        evaluates = (seen.step + 1) % self.interval_steps == 0
        priority = _hot_first(self.importance.value[: seen.sealed_tokens], seen.hot)
        return seen.fill(priority, among=None if evaluates else seen.hot)


class PamSeed(Policy):
    """Keeps tokens by classes hot, warm and cold of a decayed access count, evaluated at intervals.

    The rule of the article that describes PAM. Of two tiers, the pool takes the hot class as far as it has
    room; a warm token stays where it is; a cold one leaves the pool. Between evaluations nothing is promoted.
    Until its first evaluation a token counts as warm.

    Args:
        stream: the stream served.
        decay: 0 to below 1; the article's is 0.9.
        interval_steps: decode steps from one evaluation to the next; the article's is 50.
        hot_threshold: importance above it is hot; the article's is 5.0.
        warm_threshold: importance above it is warm; the article's is 1.0.

    Raises ValueError for an option out of range.

    """

    def __init__(
        self,
        stream: StreamInfo,
        decay: float = 0.9,
        interval_steps: int = 50,
        hot_threshold: float = 5.0,
        warm_threshold: float = 1.0,
    ) -> None:
        """Start with importance 0."""
        super().__init__(stream)
        self.importance = CountImportance(stream.max_tokens, decay, hot_threshold, warm_threshold)
        self.interval_steps = _checked_interval(interval_steps)

    def place(self, seen: Observation) -> Mask:
        """Count the step's accesses; at an evaluation promote the hot class and drop the cold one."""
        self.importance.count(seen.selected)
        among = seen.hot
        if seen.step >= 0 and (seen.step + 1) % self.interval_steps == 0:
            heat = self.importance.evaluate()[: seen.sealed_tokens]
            among = (heat == Heat.HOT) | (seen.hot & (heat == Heat.WARM))
        return seen.fill(_hot_first(self.importance.value[: seen.sealed_tokens], seen.hot), among)


def _hot_first(importance: Float64, hot: Mask) -> Float64:
    """The importance, a hair higher for hot tokens, so that they win ties, those at 0 as well."""
    return np.where(hot, importance * (1 + 1e-12) + 1e-20, importance)


def _checked_interval(interval_steps: int) -> int:
    if interval_steps < 1:
        raise ValueError(f"interval_steps is {interval_steps}; allowed: 1 or more")
    return interval_steps
