"""Upper bound that knows the next step."""

from __future__ import annotations

from nearkv.policy.base import Mask, Observation, Policy


class Oracle(Policy):
    """Keeps the tokens that the next step will attend most. Knows the future: a bound, not a policy."""

    needs_future = True

    def place(self, seen: Observation) -> Mask:
        """The pinned tokens, then those of highest true attention in the next step."""
        if seen.next_weight is None:  # after the last step nothing is worth moving
            return seen.fill(seen.hot.astype(float))
        return seen.fill(seen.next_weight[: seen.sealed_tokens])
