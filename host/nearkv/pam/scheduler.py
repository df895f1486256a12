"""PAM's dynamic scheduler: importance, placement at intervals, reaction to the load of the tiers.

New tokens arrive in HBM, and the newest `GRACE_TOKENS` stay there: their importance is not known yet.

Load: the time that each tier's part of attention took. PAM's scheduler watches it; how it reacts is not
published. Here the slowest tier hands over: it gets room for `REACTION` fewer tokens than it holds, as long
as it takes longer than the next by more than `LOAD_BAND`; room that was taken away comes back when the tier
is no longer the slowest. The least important tokens of HBM and DDR go one tier down, the most important of
the SSD go up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nearkv.pam.placement import (
    DDR,
    HBM,
    SSD,
    TIERS,
    ImportanceRatio,
    TierIndex,
    fill_up,
    fit,
    place_by_heat,
    rebalance,
)
from nearkv.policy.importance import CountImportance, ScoreImportance

TokenIndex = NDArray[np.int64]
Float64 = NDArray[np.float64]

REACTION = 0.05
LOAD_BAND = 0.10
GRACE_TOKENS = 16
# The paper publishes no x and y. Of the ratios tried on two streams of SmolLM2 (docs/pam.md), the one that
# moves as much as the paper reports: 0.7 % of the tokens per step, about 0.1 % out of the SSD.
DEFAULT_RATIO = ImportanceRatio(1000.0, 30.0)


class Rule(Enum):
    """Whose importance counts."""

    SCORES = "scores"  # the paper: I ← 0.6·score + 0.4·I, ratio x : y : 1, Algorithm 2
    COUNTS = "counts"  # the article: I ← 0.9·I + 0.1·accesses since the last evaluation, thresholds


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """The article's keys.

    Attributes:
        migration_interval: tokens from one evaluation to the next; the article's is 50, the paper's 1.
        hot_threshold: importance above it is hot (rule COUNTS); the article's is 5.0.
        batch_size: sequences that are decoded together, at most.

    ValueError for a value below 1, or a threshold below that of warm tokens, 1.0.

    """

    migration_interval: int = 50
    hot_threshold: float = 5.0
    batch_size: int = 16

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("migration_interval", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 1")
        if not self.hot_threshold >= 1:
            raise ValueError(f"hot_threshold is {self.hot_threshold!r}; allowed: from 1, that of warm tokens")

    def admitted(self, running: int, waiting: int) -> int:
        """How many waiting sequences join the batch; ValueError for negative counts."""
        if running < 0 or waiting < 0:
            raise ValueError(f"running is {running} and waiting {waiting}; allowed: from 0")
        return min(waiting, max(0, self.batch_size - running))


@dataclass(frozen=True)
class Moves:
    """What an evaluation or an overflow moved.

    Attributes:
        tokens: by (from, to) tier.
        evaluated: whether importance was evaluated.

    """

    tokens: Mapping[tuple[int, int], TokenIndex]
    evaluated: bool

    @property
    def count(self) -> int:
        """All tokens that moved."""
        return sum(len(tokens) for tokens in self.tokens.values())


class PamScheduler:
    """One stream's tokens over three tiers.

    Attributes:
        tier: int8 [tokens], where each token lies.
        room_tokens: of each tier now, after reactions.

    """

    def __init__(
        self,
        max_tokens: int,
        room_tokens: Sequence[int],
        scheduling: Scheduling,
        rule: Rule = Rule.SCORES,
        ratio: ImportanceRatio | None = None,
    ) -> None:
        """Start empty.

        Args:
            max_tokens: no token index reaches it.
            room_tokens: of HBM, DDR and SSD.
            scheduling: the article's keys; the threshold is one of rule COUNTS only.
            rule: whose importance.
            ratio: x and y of rule SCORES; None for `DEFAULT_RATIO`.

        Raises:
            ValueError: other than three tiers, too little room, or an option without effect under the rule.

        """
        if len(room_tokens) != TIERS or min(room_tokens) < 0 or sum(room_tokens) < max_tokens:
            raise ValueError(
                f"room_tokens is {tuple(room_tokens)}; allowed: three from 0, {max_tokens} in all"
            )
        if rule is Rule.COUNTS and ratio is not None:
            raise ValueError(f"ratio is {ratio}; allowed with rule counts: none, it has thresholds")
        if rule is Rule.SCORES and scheduling.hot_threshold != Scheduling.hot_threshold:
            raise ValueError(
                f"hot_threshold is {scheduling.hot_threshold}; allowed with rule scores: the default,"
                f" {Scheduling.hot_threshold}, it has a ratio"
            )
        self.scheduling, self.rule = scheduling, rule
        self.ratio = ratio or DEFAULT_RATIO
        self.room_tokens = list(room_tokens)
        self._whole = tuple(room_tokens)
        self._scores = ScoreImportance(max_tokens)
        self._counts = CountImportance(max_tokens, hot_threshold=scheduling.hot_threshold)
        self._steps = 0
        self.tier: NDArray[np.int8] = np.zeros(0, np.int8)

    @property
    def importance(self) -> Float64:
        """Of every token, [tokens]."""
        return self._importance[: len(self.tier)]

    @property
    def _importance(self) -> Float64:
        return self._scores.value if self.rule is Rule.SCORES else self._counts.value

    def step(self, tokens: int, selected: TokenIndex, weight: Float64) -> Moves:
        """Take a decode step in; new tokens arrive in HBM.

        Args:
            tokens: in the context now, at least as many as before.
            selected: distinct tokens that the step attended, ascending.
            weight: their attention weights.

        Raises:
            ValueError: fewer tokens than before, or more than the tables hold; tokens selected that are not
                in the context, or not in order; a weight that is negative or not finite. Nothing has changed.

        """
        if not len(self.tier) <= tokens <= len(self._scores.value):
            raise ValueError(f"tokens is {tokens}; allowed: {len(self.tier)} to {len(self._scores.value)}")
        if (np.diff(selected, prepend=-1, append=tokens) <= 0).any():
            raise ValueError(f"selected is {selected}; allowed: distinct tokens 0 to {tokens - 1}, ascending")
        if weight.shape != selected.shape or not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError(f"weight is {weight}; allowed: a finite number from 0 for each selected token")
        before = np.concatenate((self.tier, np.full(tokens - len(self.tier), HBM, np.int8)))
        self._steps += 1
        evaluated = self._steps % self.scheduling.migration_interval == 0
        if self.rule is Rule.SCORES:
            self._scores.update(selected, weight)
        else:
            self._counts.count(selected)
        room = self._room(tokens)
        newest = min(GRACE_TOKENS, tokens, room[HBM])
        settled = tokens - newest
        room[HBM] -= newest
        self.tier = before.copy()
        self.tier[settled:] = HBM
        self.tier[:settled] = self._placed(before[:settled], room, evaluates=evaluated)
        moved = np.flatnonzero(before != self.tier)
        pair = before[moved].astype(np.int64) * TIERS + self.tier[moved]
        found = {divmod(int(which), TIERS): moved[pair == which] for which in np.unique(pair)}
        return Moves(found, evaluated)

    def _placed(self, tier: TierIndex, room: Sequence[int], *, evaluates: bool) -> TierIndex:
        """Tiers of the settled tokens after this step."""
        heat = self._counts.evaluate()[: len(tier)] if evaluates and self.rule is Rule.COUNTS else None
        importance = self._importance[: len(tier)]
        if heat is not None:
            return place_by_heat(importance, heat, tier, room)
        if evaluates:
            return rebalance(importance, fill_up(importance, tier, room), self.ratio)
        return fit(importance, tier, room)

    def react(self, tier_ps: Sequence[int]) -> None:
        """Take the times in that the tiers' parts of the last step took.

        Raises:
            ValueError: other than three times from 0.

        """
        if len(tier_ps) != TIERS or min(tier_ps) < 0:
            raise ValueError(f"tier_ps is {tuple(tier_ps)}; allowed: three times from 0")
        next_ps, slowest_ps = sorted(tier_ps)[-2:]
        held = np.bincount(self.tier, minlength=TIERS)
        for here in (HBM, DDR, SSD):
            slowest = tier_ps[here] == slowest_ps > next_ps
            if slowest and slowest_ps > (1 + LOAD_BAND) * next_ps:
                fewer = max(1, int(held[here] * (1 - REACTION)))
                self.room_tokens[here] = min(self._whole[here], fewer)
            elif not slowest:  # the slowest within the band neither shrinks nor grows
                grown = int(self.room_tokens[here] * (1 + REACTION)) + 1
                self.room_tokens[here] = min(self._whole[here], grown)

    def _room(self, tokens: int) -> list[int]:
        """Room now; where reactions left too little in all, the lowest tiers give theirs back first."""
        room = list(self.room_tokens)
        for here in (SSD, DDR, HBM):
            missing = tokens - sum(room)
            room[here] += min(max(0, missing), self._whole[here] - room[here])
        return room
