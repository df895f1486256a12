"""Replays lists of accesses through a policy, without a trace, a model or a device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import PREFILL_STEP, Float16, Float64, Mask, Observation, Policy, TokenIndex
from nearkv.policy.future import FutureAccesses


@dataclass(frozen=True)
class AccessList:
    """What each step of a stream accesses. All tokens are sealed before the first step.

    Attributes:
        tokens: sealed tokens; the pool is empty at first.
        accesses: one int64 array of distinct token indices per step, ascending.
        weights: attention weights, shaped like `accesses`; None for equal ones that sum to 1.
        keys: float16 [tokens, head_dim], for policies with `needs_keys` or `needs_scoring`.
        queries: float16 [steps, heads, head_dim], likewise.

    Raises ValueError for an access that is out of range or out of order.

    """

    tokens: int
    accesses: Sequence[TokenIndex]
    weights: Sequence[Float64] | None = None
    keys: Float16 | None = None
    queries: Float16 | None = None

    def __post_init__(self) -> None:
        """Check every step's accesses."""
        for step, accessed in enumerate(self.accesses):
            bounded = np.concatenate([[-1], accessed, [self.tokens]])
            if (np.diff(bounded) <= 0).any():
                raise ValueError(
                    f"step {step} accesses {np.asarray(accessed).tolist()};"
                    f" allowed: distinct tokens 0 to {self.tokens - 1}, ascending"
                )


@dataclass(frozen=True)
class ReplayedStep:
    """One step: `hits` of its accesses were hot, and `placement`, bool [tokens], follows it."""

    hits: int
    placement: Mask


def replay_accesses(
    policy: Policy, trace: AccessList, capacity_tokens: int, pinned: Mask | None = None
) -> Iterator[ReplayedStep]:
    """Run a fresh policy over the steps, and hold each placement to the rules.

    Args:
        policy: a fresh instance, its stream's max_tokens at least trace.tokens.
        trace: the accesses, and keys and queries if the policy needs them.
        capacity_tokens: tokens that may be hot.
        pinned: bool [tokens], at most capacity_tokens of them; None for none.

    Raises ValueError for a placement that breaks the rules, and for missing keys or queries.

    """
    sees_keys = policy.needs_keys or policy.needs_scoring
    if sees_keys and (trace.keys is None or trace.queries is None):
        raise ValueError(f"keys or queries is None; {type(policy).__name__} needs both")
    future = FutureAccesses(trace.accesses, trace.tokens) if policy.needs_future else None
    hot = np.zeros(trace.tokens, np.bool_)

    def place(step: int, selected: TokenIndex, weight: NDArray[np.float64]) -> Mask:
        sees_query = sees_keys and step != PREFILL_STEP
        seen = Observation(
            step=step,
            tokens=trace.tokens,
            sealed_tokens=trace.tokens,
            capacity_tokens=capacity_tokens,
            pinned=np.zeros(trace.tokens, np.bool_) if pinned is None else pinned.copy(),
            hot=hot,
            selected=selected,
            weight=weight,
            query=trace.queries[step] if sees_query and trace.queries is not None else None,
            new_keys=_new_keys(policy, trace, step),
            score=partial(_score, trace.keys) if policy.needs_scoring and trace.keys is not None else None,
            next_weight=None if future is None else _next_weight(trace, step + 1),
            next_use=None if future is None else future.after(step),
        )
        placement = policy.place(seen)
        return seen.check(placement) if policy.bounded else placement.copy()

    hot = place(PREFILL_STEP, np.empty(0, np.int64), np.empty(0))
    for step, selected in enumerate(trace.accesses):
        hits = int(hot[selected].sum())
        hot = place(step, selected.copy(), _weight(trace, step))
        yield ReplayedStep(hits, hot)


def _new_keys(policy: Policy, trace: AccessList, step: int) -> Float16 | None:
    if not policy.needs_keys or trace.keys is None:
        return None
    return trace.keys if step == PREFILL_STEP else trace.keys[:0]


def _score(keys: Float16, query: NDArray[np.float32]) -> Float64:
    """Softmax of q·k/√d over all tokens, mean over the query's heads: float64 [tokens]."""
    scores = keys.astype(np.float64) @ query.T / math.sqrt(keys.shape[1])
    weights = np.exp(scores - scores.max(axis=0, initial=-np.inf))
    return np.asarray((weights / weights.sum(axis=0)).mean(axis=1))


def _weight(trace: AccessList, step: int) -> Float64:
    if trace.weights is not None:
        return trace.weights[step].copy()
    return np.full(len(trace.accesses[step]), 1 / max(len(trace.accesses[step]), 1))


def _next_weight(trace: AccessList, step: int) -> Float64 | None:
    if step >= len(trace.accesses):
        return None
    weight = np.zeros(trace.tokens + 1)
    weight[trace.accesses[step]] = _weight(trace, step)
    return weight
