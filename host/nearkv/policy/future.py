"""When each token is accessed next, for the bounds that know the future."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearkv.policy.base import NEVER_USED, PREFILL_STEP, TokenIndex


class FutureAccesses:
    """The next access of every token as the steps go by.

    A backward pass over the steps notes for each access when the same token is accessed next, so that going
    forward costs only the accesses of a step.

    Args:
        accesses: one int64 array of distinct token indices per step.
        max_tokens: no index reaches it.

    """

    def __init__(self, accesses: Sequence[TokenIndex], max_tokens: int) -> None:
        """Walk the steps backwards."""
        self._accesses = accesses
        self._step = PREFILL_STEP
        self._next_use: TokenIndex = np.full(max_tokens, NEVER_USED, np.int64)
        self._following: list[TokenIndex] = []
        for step in reversed(range(len(accesses))):
            self._following.append(self._next_use[accesses[step]])
            self._next_use[accesses[step]] = step
        self._following.reverse()

    def after(self, step: int) -> TokenIndex:
        """The first step later than `step` that accesses each token: int64 [max_tokens], NEVER_USED if none.

        Steps must not go back; ValueError if they do.
        """
        if step < self._step:
            raise ValueError(f"step is {step}; allowed: {self._step} or later, steps must not go back")
        for passed in range(self._step + 1, min(step + 1, len(self._accesses))):
            self._next_use[self._accesses[passed]] = self._following[passed]
        self._step = step
        return self._next_use.copy()
