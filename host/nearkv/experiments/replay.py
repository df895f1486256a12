"""Replays the attention of a trace through policies: mass kept, hits, churn and traffic, step by step.

Nothing is quantised and no device is simulated, so a stream of 8,192 tokens takes about a second per policy
and 1,024 steps. `nearkv run` measures the same policies with codes, blocks, links and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import Float32, Int64, ReplayStream
from nearkv.kvcache.budget import share_ceil
from nearkv.policy.base import PREFILL_STEP, Float64, Mask, Observation, Policy, Prompt
from nearkv.policy.future import FutureAccesses
from nearkv.policy.ranking import top_lowest_index

CHUNK_STEPS = 256  # bounds the weights in memory to CHUNK_STEPS · context floats


@dataclass(frozen=True)
class ReplayResult:
    """What one policy did in the scored steps; arrays are [steps].

    Attributes:
        mass_kept: true attention that hot tokens hold, mean over the query heads.
        hit_rate: share of the accessed tokens that are hot.
        accessed_tokens, fetched_tokens: accessed in all, and those of them that were cold.
        promoted_tokens: tokens made hot for the step that were cold in the step before.
        promotion_read_tokens: those of them that the step before had not fetched anyway.
        capacity_tokens: hot tokens beside the step's own.

    """

    mass_kept: Float64
    hit_rate: Float64
    accessed_tokens: Int64
    fetched_tokens: Int64
    promoted_tokens: Int64
    promotion_read_tokens: Int64
    capacity_tokens: Int64

    @property
    def churn(self) -> float:
        """Mean share of the hot pool that a step replaces."""
        return float((self.promoted_tokens / self.capacity_tokens).mean())

    @property
    def traffic_cut(self) -> float:
        """1 − (fetched + promotion reads) / accessed: rows saved against no hot pool at all."""
        moved = self.fetched_tokens.sum() + self.promotion_read_tokens.sum()
        return float(1 - moved / self.accessed_tokens.sum())


def replay(
    stream: ReplayStream,
    policies: Mapping[str, Policy],
    protocol: ReplayProtocol,
    watch: Callable[[str, int, Mask], None] | None = None,
) -> dict[str, ReplayResult]:
    """Replay a stream through fresh policies, all in one pass over its attention.

    Args:
        stream: what to replay.
        policies: fresh instances by name; their stream's max_tokens must reach the context's.
        protocol: sizes and steps.
        watch: told for every policy and scored step which tokens are hot in it: bool [tokens].

    Raises:
        ValueError: a stream too short for the protocol, a placement that breaks the rules, or a policy with
            `needs_keys` or `needs_scoring` on a stream of several KV heads.

    """
    first = protocol.first_step(stream)
    runs = {name: _PolicyRun(policy, stream, protocol, first) for name, policy in policies.items()}
    for chunk in range(0, protocol.steps, CHUNK_STEPS):
        # One row more than the chunk has steps: the future of its last step.
        rows = stream.weights(first + chunk, min(CHUNK_STEPS + 1, protocol.steps - chunk))
        for index in range(min(CHUNK_STEPS, len(rows))):
            step = chunk + index
            tokens = stream.first_query_position + first + step + 1
            weight = rows[index, :tokens]
            accessed = top_lowest_index(weight, share_ceil(protocol.select_fraction, tokens))
            following = rows[index + 1, : tokens + 1] if index + 1 < len(rows) else None
            for name, run in runs.items():
                hot = run.step(step, weight, accessed, following)
                if watch is not None and step >= protocol.warmup_steps:
                    watch(name, step - protocol.warmup_steps, hot)
    return {name: run.result() for name, run in runs.items()}


class _PolicyRun:
    """One policy on its way through a stream."""

    def __init__(
        self, policy: Policy, stream: ReplayStream, protocol: ReplayProtocol, first_step: int
    ) -> None:
        if len(stream.heads) > 1 and (policy.needs_keys or policy.needs_scoring):
            raise ValueError(
                f"policy {type(policy).__name__} needs keys or scores, stream {stream.name} has "
                f"{len(stream.heads)} KV heads; allowed: one KV head"
            )
        self._policy, self._stream, self._protocol = policy, stream, protocol
        self._first_step = first_step
        self._prompt_tokens = stream.first_query_position + first_step
        self._future = self._future_accesses() if policy.needs_future else None
        self._records: list[dict[str, float]] = []
        self._moves = {"promoted_tokens": 0, "promotion_read_tokens": 0}
        # Whatever the prompt's rows are, they are on the host when the first placement is made.
        self._hot = np.ones(self._prompt_tokens, np.bool_)
        nothing = np.empty(0, np.int64)
        following = stream.weights(first_step, 1)[0, : self._prompt_tokens + 1]
        self._place(PREFILL_STEP, nothing, np.empty(0), following)

    def step(self, step: int, weight: Float32, accessed: Int64, following: Float32 | None) -> Mask:
        """Attend with what is hot, note it, and place for the next step; returns what was hot.

        `weight` is float32 [tokens], `following` the next step's, None after the last step.
        """
        hot = np.append(self._hot, True)  # the step's own token
        if step >= self._protocol.warmup_steps:
            found = int(hot[accessed].sum())
            self._records.append(
                {
                    "mass_kept": float(weight[hot].sum(dtype=np.float64)),
                    "hit_rate": found / len(accessed),
                    "accessed_tokens": len(accessed),
                    "fetched_tokens": len(accessed) - found,
                    "capacity_tokens": self._protocol.capacity_tokens(len(weight)),
                    **self._moves,
                }
            )
        self._hot = hot
        self._place(step, accessed, weight[accessed].astype(np.float64), following)
        return hot

    def result(self) -> ReplayResult:
        """What the scored steps gave."""
        columns: dict[str, Any] = {
            field.name: np.array([record[field.name] for record in self._records])
            for field in fields(ReplayResult)
        }
        return ReplayResult(**columns)

    def _place(self, step: int, accessed: Int64, weight: Float64, following: Float32 | None) -> None:
        policy, protocol, tokens = self._policy, self._protocol, len(self._hot)
        seen = Observation(
            step=step,
            tokens=tokens,
            sealed_tokens=tokens,
            capacity_tokens=protocol.capacity_tokens(tokens + 1),
            pinned=protocol.pinned(tokens + 1),
            hot=self._hot.copy(),
            selected=accessed.copy(),
            weight=weight,
            **self._what_it_needs(step, tokens, following),
        )
        placement = policy.place(seen)
        placed = seen.check(placement) if policy.bounded else placement.copy()
        gained = placed & ~self._hot
        fetched = np.zeros(tokens, np.bool_)
        fetched[accessed] = True
        self._moves = {
            "promoted_tokens": int(gained.sum()),
            "promotion_read_tokens": int((gained & ~fetched).sum()),
        }
        self._hot = placed

    def _what_it_needs(self, step: int, tokens: int, following: Float32 | None) -> dict[str, Any]:
        """The observation's fields beyond what every policy sees."""
        policy, head, ids = self._policy, self._stream.heads[0], self._stream.token_ids
        found: dict[str, Any] = {}
        if (policy.needs_keys or policy.needs_scoring) and step != PREFILL_STEP:
            found["query"] = head.query[:, self._first_step + step].copy()
        if policy.needs_keys:
            found["new_keys"] = head.key[:tokens] if step == PREFILL_STEP else head.key[tokens - 1 : tokens]
        if policy.needs_scoring:
            found["score"] = partial(self._stream.score, tokens=tokens)
            found["next_token"] = int(ids[tokens]) if ids is not None and tokens < len(ids) else None
            if step == PREFILL_STEP and self._first_step:
                known = slice(self._stream.first_query_position, tokens)
                found["prompt"] = Prompt(
                    head.query[:, : self._first_step].copy(), None if ids is None else ids[known].copy()
                )
        if self._future is not None:
            found["next_weight"] = None if following is None else following.astype(np.float64)
            found["next_use"] = self._future.after(step)[:tokens]
        return found

    def _future_accesses(self) -> FutureAccesses:
        """The accesses of all replayed steps."""
        stream, accesses = self._stream, []
        for chunk in range(self._first_step, stream.steps, CHUNK_STEPS):
            rows = stream.weights(chunk, min(CHUNK_STEPS, stream.steps - chunk))
            for tokens, row in enumerate(rows, stream.first_query_position + chunk + 1):
                count = share_ceil(self._protocol.select_fraction, tokens)
                accesses.append(top_lowest_index(row[:tokens], count))
        return FutureAccesses(accesses, stream.context_tokens)
