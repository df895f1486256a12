"""Baseline without tiers: everything stays in the hot pool."""

from __future__ import annotations

import numpy as np

from nearkv.policy.base import Mask, Observation, Policy


class Full(Policy):
    """Keeps every token hot, whatever the capacity: the baseline without a cold tier."""

    bounded = False

    def place(self, seen: Observation) -> Mask:
        """All sealed tokens."""
        return np.ones(seen.sealed_tokens, np.bool_)
