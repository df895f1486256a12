"""The newest tokens that fit."""

from __future__ import annotations

import numpy as np

from nearkv.policy.base import Mask, Observation, Policy


class Recency(Policy):
    """Keeps the sinks and the most recent tokens, as many as the pool holds, whatever is accessed."""

    def place(self, seen: Observation) -> Mask:
        """The pinned tokens, then the newest."""
        return seen.fill(np.arange(seen.sealed_tokens))
