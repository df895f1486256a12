"""Where in a device a token lies: bank groups of HBM and DDR, channels of an SSD.

PAM (arXiv 2602.11521): the time of a step is that of the group with the most activations, T = max over
groups. Activations of the last ten steps are remembered; a token goes to the group with the least, and within
it over the banks in turn, at the same row of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TokenIndex = NDArray[np.int64]
Float64 = NDArray[np.float64]
WINDOW_STEPS = 10
UNPLACED = -1


@dataclass(frozen=True)
class DeviceShape:
    """Parallel parts of one device: PAM's HBM rank has 4 groups of 4 banks, a DDR chip 2 of 4, an SSD 8 of 4.

    Attributes:
        groups: bank groups or channels.
        banks: of each; dies of a channel.

    ValueError for a count below 1.

    """

    groups: int
    banks: int

    def __post_init__(self) -> None:
        """Check both."""
        for name in ("groups", "banks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 1")


class DeviceMapping:
    """Groups, banks and rows of one device's tokens.

    Attributes:
        shape: of the device.
        group, bank, row: int64 [max_tokens]; UNPLACED where a token is not in the device.

    """

    def __init__(self, shape: DeviceShape, max_tokens: int) -> None:
        """Empty; no token index reaches `max_tokens`."""
        self.shape = shape
        self.group, self.bank, self.row = (np.full(max_tokens, UNPLACED, np.int64) for _ in range(3))
        self._recent = np.zeros((WINDOW_STEPS, shape.groups), np.int64)
        self._steps = 0
        self._slots = np.zeros(shape.groups, np.int64)  # handed out in each group

    @property
    def activations(self) -> NDArray[np.int64]:
        """Of each group, over the last ten steps."""
        total: NDArray[np.int64] = self._recent.sum(axis=0)
        return total

    def observe(self, tokens: TokenIndex) -> None:
        """Count the step's activations; tokens that are not in the device count nowhere."""
        self._recent[self._steps % WINDOW_STEPS] = self._load(tokens)
        self._steps += 1

    def step_time(self, tokens: TokenIndex) -> int:
        """T of a step that activates `tokens`: activations of the busiest group."""
        return int(self._load(tokens).max())

    def imbalance(self, tokens: TokenIndex) -> float:
        """T over that of a perfect spread, from 1; 1 without activations."""
        load = self._load(tokens)
        return float(load.max() * len(load) / load.sum()) if load.any() else 1.0

    def place(self, tokens: TokenIndex, expected: float | None = None) -> None:
        """Put tokens into the least-activated groups, one after the other.

        Args:
            tokens: distinct and not in the device.
            expected: activations that each adds to its group over ten steps; None for the mean of the tokens
                that are placed, at least 1.

        Raises:
            ValueError: a token that is placed, given twice or beyond the table, or an expectation that is not
                a finite number above 0.

        """
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < len(self.group):
            raise ValueError(
                f"tokens are {tokens.min()} to {tokens.max()}; allowed: 0 to {len(self.group) - 1}"
            )
        if len(np.unique(tokens)) < len(tokens):
            raise ValueError(f"tokens are {tokens}; allowed: each once")
        if (self.group[tokens] != UNPLACED).any():
            raise ValueError(f"token {tokens[self.group[tokens] != UNPLACED][0]} is in the device already")
        placed = int(np.count_nonzero(self.group != UNPLACED))
        weight = expected if expected is not None else max(1.0, self._recent.sum() / max(1, placed))
        if not 0 < weight < math.inf:
            raise ValueError(f"expected is {expected!r}; allowed: a finite number above 0")
        chosen = least_loaded(self.activations.astype(np.float64), len(tokens), weight)
        self.group[tokens] = chosen
        # Slots of a group run over its banks first, so that its tokens lie at one row of every bank.
        slot = self._slots[chosen] + _occurrence(chosen, self.shape.groups)
        self.bank[tokens], self.row[tokens] = slot % self.shape.banks, slot // self.shape.banks
        self._slots += np.bincount(chosen, minlength=self.shape.groups)

    def remove(self, tokens: TokenIndex) -> None:
        """Take tokens out; their slots are not handed out again."""
        for table in (self.group, self.bank, self.row):
            table[tokens] = UNPLACED

    def _load(self, tokens: TokenIndex) -> NDArray[np.int64]:
        group = self.group[tokens]
        return np.bincount(group[group != UNPLACED], minlength=self.shape.groups)


def least_loaded(load: Float64, count: int, weight: float) -> TokenIndex:
    """Groups that greedy placement picks one after the other, ties to the lower group.

    The greedy choice takes the `count` smallest of load[g] + j·weight, j = 0, 1, …, in order.
    """
    level = load[:, None] + weight * np.arange(count)[None, :]
    order = np.lexsort((np.repeat(np.arange(len(load)), count), level.ravel()))[:count]
    return order // max(1, count)


def _occurrence(values: TokenIndex, kinds: int) -> TokenIndex:
    """How often each value occurred before it in the array."""
    order = np.argsort(values, kind="stable")
    counts = np.bincount(values, minlength=kinds)
    first = np.concatenate(([0], np.cumsum(counts)[:-1]))
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - first[values[order]]
    return found
