"""Belady's offline optimum (IBM Systems Journal 5(2), 1966) for a pool filled on demand."""

from __future__ import annotations

import numpy as np

from nearkv.policy.base import Mask, Observation, Policy


class Belady(Policy):
    """Evicts the token whose next use is farthest in the future. Knows the future: a bound, not a policy.

    The least number of fetches that a pool filled on demand can have: a token becomes hot only when it was
    accessed, and a fetched token need not be kept. `oracle` in contrast also reads ahead. The future it is
    given is the selection by exact attention, which the scores of a run may differ from.
    """

    needs_future = True

    def place(self, seen: Observation) -> Mask:
        """Of what is at hand, the tokens used soonest."""
        if seen.next_use is None:
            raise ValueError("next_use is None; allowed: steps of next use, as needs_future asks for")
        return seen.fill(np.negative(seen.next_use), among=seen.at_hand())
