"""The rules under which policies are compared on a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearkv.experiments.replay_stream import ReplayStream
from nearkv.kvcache.budget import share_floor
from nearkv.policy.base import Mask


@dataclass(frozen=True)
class ReplayProtocol:
    """What every policy is held to. A step's own token is hot, and counts as one of the recent tokens.

    Attributes:
        hot_fraction: share of the context that is hot during a step, pinned tokens included.
        select_fraction: share of the context that a step accesses: those of largest true attention.
        sinks: first tokens that are always hot.
        recent_tokens: last tokens that are always hot, the step's own included, at least 1.
        warmup_steps: steps before the scored ones that policies see; what precedes them is the prompt.
        scored_steps: last steps of the trace, which the result is about.

    Raises ValueError for a value out of range.

    """

    hot_fraction: float = 0.10
    select_fraction: float = 0.10
    sinks: int = 4
    recent_tokens: int = 21
    warmup_steps: int = 512
    scored_steps: int = 512

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("hot_fraction", "select_fraction"):
            if not 0 < (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} is {value}; allowed: above 0 to 1")
        for name, least in (("sinks", 0), ("recent_tokens", 1), ("warmup_steps", 0), ("scored_steps", 1)):
            if (value := getattr(self, name)) < least:
                raise ValueError(f"{name} is {value}; allowed: {least} or more")

    @property
    def steps(self) -> int:
        """Steps that are replayed."""
        return self.warmup_steps + self.scored_steps

    def first_step(self, stream: ReplayStream) -> int:
        """The stream's first step that is replayed; ValueError if it is too short or its pool too small."""
        if self.steps > stream.steps:
            raise ValueError(
                f"stream {stream.name} has {stream.steps} steps; allowed: {self.steps} or more, "
                f"{self.warmup_steps} to warm up and {self.scored_steps} scored"
            )
        first = stream.steps - self.steps
        tokens = stream.first_query_position + first + 1
        if (pool := share_floor(self.hot_fraction, tokens)) < (pinned := self.sinks + self.recent_tokens):
            raise ValueError(
                f"hot_fraction {self.hot_fraction} makes {pool} of {tokens} tokens hot; "
                f"allowed: at least the {pinned} that are always hot"
            )
        return first

    def capacity_tokens(self, tokens: int) -> int:
        """Hot tokens in a context of `tokens` beside the step's own, which is not placed."""
        return share_floor(self.hot_fraction, tokens) - 1

    def pinned(self, tokens: int) -> Mask:
        """Those of the tokens before the step's own that must be hot: bool [tokens − 1]."""
        pinned = np.zeros(tokens - 1, np.bool_)
        pinned[: self.sinks] = True
        pinned[tokens - self.recent_tokens :] = True
        return pinned
