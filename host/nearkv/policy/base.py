"""What a placement policy is, and what it may know.

A policy decides, for one (layer, kv head) stream, which sealed tokens have a copy in the hot pool during the
*next* step. A new one is a class with a `place` method:

    class LeastRecent(Policy):
        '''Keeps the tokens that were selected last.'''

        def __init__(self, stream: StreamInfo) -> None:
            super().__init__(stream)
            self.last_use = np.zeros(stream.max_tokens)

        def place(self, seen: Observation) -> Mask:
            self.last_use[seen.selected] = seen.step + 1
            return seen.fill(self.last_use[: seen.sealed_tokens])

Keyword arguments of its `__init__` beside `stream` are its options in a configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.ranking import highest

Mask = NDArray[np.bool_]
TokenIndex = NDArray[np.int64]
Float64 = NDArray[np.float64]

Float16 = NDArray[np.float16]
# Scores a query float32 [heads, head_dim] over the sealed tokens: float64 [sealed_tokens].
ScoreSealed = Callable[[NDArray[np.float32]], Float64]

PREFILL_STEP = -1
NEVER_USED = np.iinfo(np.int64).max  # in `Observation.next_use`


@dataclass(frozen=True)
class StreamInfo:
    """The stream a policy instance serves.

    Attributes:
        layer: index of the layer in the model.
        kv_head: index of the KV head in the layer.
        max_tokens: no token index of this stream ever reaches it, so that tables can be allocated once.
        seed: the experiment's seed; `Policy.rng` follows from it.

    """

    layer: int
    kv_head: int
    max_tokens: int
    seed: int = 0


@dataclass(frozen=True)
class Prompt:
    """The last n tokens of the prompt, which the host has just run through the model.

    Attributes:
        query: float16 [heads, n, head_dim], their query rows; the last one is the context's newest token.
        token: int64 [n], their token ids; None where they are not known.

    """

    query: Float16
    token: TokenIndex | None = None


@dataclass(frozen=True)
class Observation:
    """What is known once a step is done; the decision is for the step after it. Arrays are read-only.

    Attributes:
        step: the decode step that just ended, from 0; PREFILL_STEP before the first one.
        tokens: tokens in the context so far, the step's own token included.
        sealed_tokens: tokens 0 … sealed_tokens−1 lie in the cold store and are the ones to place; the
            others form the unsealed tail and are always hot.
        capacity_tokens: how many sealed tokens may be hot in the next step.
        pinned: bool [sealed_tokens], tokens that must be hot (sinks and the most recent); never more than
            capacity_tokens.
        hot: bool [sealed_tokens], tokens whose rows are in the hot pool now. May exceed the capacity: a
            block that was just sealed is still hot as a whole.
        selected: int64, ascending: the tokens this step selected, tail included. These are the accesses.
        weight: float64, as long as `selected`: their attention weight in this step's output, mean over the
            query heads of the group.
        query: float16 [heads, head_dim], the query rows of this step; None unless the policy's class sets
            `needs_keys` or `needs_scoring`, and at PREFILL_STEP.
        new_keys: float16 [n, head_dim], key rows of the n tokens sealed since the last observation: they
            were on the host until now, a policy that wants to know them later keeps its own summary. None
            unless the policy's class sets `needs_keys`.
        prompt: the prompt's queries at PREFILL_STEP, where they are known and the policy's class sets
            `needs_scoring`; None otherwise.
        next_token: token id that the next step feeds into the model, sampled at the end of this one; None
            where it is not known or the policy's class does not set `needs_scoring`.
        score: scores a query of the policy's own making over the sealed tokens, as attention weights (softmax
            over these tokens), mean over the heads. Every call is one more pass of the scorer over the cold
            store's codes. None unless the policy's class sets `needs_scoring`.
        next_weight: float64 [tokens + 1], the true attention of the next step, mean over the query heads;
            None unless the policy's class sets `needs_future`, and after the last step.
        next_use: int64 [sealed_tokens], the next step in which the token is among those of largest true
            attention, NEVER_USED if there is none; None unless the policy's class sets `needs_future`.

    """

    step: int
    tokens: int
    sealed_tokens: int
    capacity_tokens: int
    pinned: Mask
    hot: Mask
    selected: TokenIndex
    weight: Float64
    query: Float16 | None = None
    new_keys: Float16 | None = None
    prompt: Prompt | None = None
    next_token: int | None = None
    score: ScoreSealed | None = None
    next_weight: Float64 | None = None
    next_use: TokenIndex | None = None

    def __post_init__(self) -> None:
        """Lock the arrays: the rules are checked against them, and the step's record shares some."""
        shared = [*vars(self).values(), *(vars(self.prompt).values() if self.prompt else ())]
        for value in shared:
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def accessed(self) -> TokenIndex:
        """Those of the selected tokens that are sealed, ascending."""
        return self.selected[: np.searchsorted(self.selected, self.sealed_tokens)]

    def at_hand(self) -> Mask:
        """The tokens that can be hot without another read, bool [sealed_tokens]: hot or accessed."""
        found = self.hot.copy()
        found[self.accessed()] = True
        return found

    def fill(self, priority: NDArray[np.floating | np.integer], among: Mask | None = None) -> Mask:
        """The pinned tokens and, up to the capacity, those of highest priority; ties to the newer token.

        Args:
            priority: [sealed_tokens], no NaN.
            among: bool [sealed_tokens], the tokens to choose from beside the pinned ones; None for all.

        ValueError on another shape, and for NaN.
        """
        if priority.shape != (self.sealed_tokens,):
            raise ValueError(f"priority has shape {priority.shape}; allowed: ({self.sealed_tokens},)")
        if among is not None and among.shape != (self.sealed_tokens,):
            raise ValueError(f"among has shape {among.shape}; allowed: ({self.sealed_tokens},)")
        if np.isnan(priority.min(initial=0)):  # NaN wins every comparison for the minimum
            token = np.flatnonzero(np.isnan(priority))[0]
            raise ValueError(f"priority is nan at token {token}; allowed: values that can be compared")
        hot = self.pinned.copy()
        others = np.flatnonzero(~hot if among is None else among & ~hot)
        count = min(self.capacity_tokens - int(hot.sum()), len(others))
        hot[others[highest(priority[others], count)]] = True
        return hot

    def check(self, placement: object) -> Mask:
        """Return a copy of a placement that obeys the rules; ValueError that says which one it breaks.

        A copy, since the policy may use its array again; and a plain array, since a masked one is no answer.
        """
        if not (type(placement) is np.ndarray and placement.dtype == np.bool_):
            found = placement.dtype if type(placement) is np.ndarray else type(placement).__name__
            raise ValueError(f"placement is {found}; allowed: a numpy array of bool")
        if placement.shape != (self.sealed_tokens,):
            raise ValueError(f"placement has shape {placement.shape}; allowed: ({self.sealed_tokens},)")
        if (count := int(placement.sum())) > self.capacity_tokens:
            raise ValueError(f"placement holds {count} tokens; allowed: at most {self.capacity_tokens}")
        if len(missing := np.flatnonzero(self.pinned & ~placement)):
            raise ValueError(f"placement leaves token {missing[0]} cold, which is pinned")
        return placement.copy()


class Policy(ABC):
    """Base of every placement policy: one instance per stream, called once per step.

    Class attributes:
        needs_future: hand over `Observation.next_weight` and `next_use`. Such a policy is a bound, not a
            policy.
        needs_keys: hand over `Observation.query` and `new_keys`.
        needs_scoring: hand over `Observation.query`, `prompt`, `next_token` and `score`.
        bounded: keep to the hot pool's capacity. False only for the baseline without tiers.
    """

    needs_future: ClassVar[bool] = False
    needs_keys: ClassVar[bool] = False
    needs_scoring: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    def __init__(self, stream: StreamInfo) -> None:
        """Remember the stream and seed `rng` from (seed, layer, kv head)."""
        self.stream = stream
        self.rng = np.random.default_rng((stream.seed, stream.layer, stream.kv_head))

    @abstractmethod
    def place(self, seen: Observation) -> Mask:
        """Which sealed tokens are hot in the next step: bool [sealed_tokens].

        At most `seen.capacity_tokens` of them, every pinned one included; `seen.fill` does both.
        """
