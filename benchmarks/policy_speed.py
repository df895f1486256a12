"""Time of a placement decision beside float32 scores of the same step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.measure import median_cpu_seconds
from benchmarks.registry import Table
from nearkv.kvcache.budget import HotBudget
from nearkv.policy.base import PREFILL_STEP, Mask, Observation, Policy, StreamInfo, TokenIndex
from nearkv.policy.future import FutureAccesses
from nearkv.policy.registry import installed_policies

_TOKENS, _KV_HEADS, _HEAD_DIM = 131072, 8, 128
_STEPS = 24
_SELECT_FRACTION = 0.1
_KEPT_FROM_LAST_STEP = 0.72  # of a step's accesses, as measured on SmolLM2-135M at 8K tokens
_REPEATS = 15


def measure() -> Table:
    """One stream, times eight KV heads; one query head per KV head, so that the bound is the tightest."""
    rng = np.random.default_rng(0)
    accesses = _accesses(rng)
    keys = rng.standard_normal((_TOKENS, _HEAD_DIM), np.float32)
    query = rng.standard_normal(_HEAD_DIM, np.float32)
    functions: dict[str, Callable[[], object]] = {"float32 K @ q": lambda: keys @ query}
    for name, policy in installed_policies().items():
        functions[name] = _Replay(policy(StreamInfo(0, 0, _TOKENS + 1)), accesses, keys, query).step
    seconds = median_cpu_seconds(functions, _REPEATS)
    bound = seconds.pop("float32 K @ q")
    rows = [
        {
            "policy": name,
            "CPU-ms / step": spent * _KV_HEADS * 1e3,
            "K @ q, CPU-ms": bound * _KV_HEADS * 1e3,
            "share of K @ q": spent / bound,
            "within": "yes" if spent <= bound else "no",
        }
        for name, spent in sorted(seconds.items(), key=lambda item: item[1])
    ]
    return Table(
        f"place() of {_KV_HEADS} KV heads, {_TOKENS:,} tokens, hot .20, pinned .10, selected"
        f" {_SELECT_FRACTION}, beside float32 scores of head_dim {_HEAD_DIM}, one BLAS thread",
        rows,
    )


def _accesses(rng: np.random.Generator) -> list[TokenIndex]:
    """Sets of a tenth of the tokens, of which most were in the set before."""
    count = int(_SELECT_FRACTION * _TOKENS)
    kept = int(_KEPT_FROM_LAST_STEP * count)
    steps = [rng.choice(_TOKENS, count, replace=False)]
    while len(steps) < _STEPS:
        others = np.setdiff1d(np.arange(_TOKENS), steps[-1], assume_unique=True)
        new = rng.choice(others, count - kept, replace=False)
        steps.append(np.concatenate([rng.choice(steps[-1], kept, replace=False), new]))
    return [np.sort(step) for step in steps]


class _Replay:
    """Feeds a policy one step per call, each with the pool that its last placement left."""

    def __init__(
        self,
        policy: Policy,
        accesses: list[TokenIndex],
        keys: np.ndarray,
        query: np.ndarray,
    ) -> None:
        self._policy, self._accesses = policy, accesses
        self._keys, self._query = keys.astype(np.float16), query[None].astype(np.float16)
        budget = HotBudget(hot_fraction=0.20, recent_fraction=0.10, sinks=4)
        self._capacity = budget.capacity_tokens(_TOKENS, _TOKENS)
        self._pinned = budget.pinned(_TOKENS, _TOKENS)
        future = FutureAccesses(accesses, _TOKENS) if policy.needs_future else None
        self._next_use = [future.after(step) for step in range(_STEPS)] if future else [None] * _STEPS
        self._next_weight = _weights(_TOKENS + 1) if policy.needs_future else None
        self._weight = _weights(len(accesses[0]))
        self._scores = _weights(_TOKENS)  # the device's work, so it costs the host nothing here
        self._step = PREFILL_STEP
        self._hot: Mask = np.ones(_TOKENS, np.bool_)  # as after a prefill
        self.step()

    def step(self) -> Mask:
        """Place after one step; the first call is the prefill's."""
        step, prefill = self._step, self._step == PREFILL_STEP
        seen = Observation(
            step=step,
            tokens=_TOKENS,
            sealed_tokens=_TOKENS,
            capacity_tokens=self._capacity,
            pinned=self._pinned,
            hot=self._hot,
            selected=np.empty(0, np.int64) if prefill else self._accesses[step],
            weight=np.empty(0) if prefill else self._weight,
            query=None if prefill else self._query,
            new_keys=self._keys if prefill else self._keys[:0],
            score=lambda _: self._scores,
            next_weight=self._next_weight,
            next_use=self._next_use[max(step, 0)],
        )
        self._hot = self._policy.place(seen)
        self._step += 1
        return self._hot


def _weights(count: int) -> np.ndarray:
    """Weights that sum to 1, from a fixed seed."""
    weights = np.random.default_rng(1).exponential(size=count)
    return weights / weights.sum()
