"""Fetch a sequence's KV cache from a tier, or compute it again: which is faster, and where the two meet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nearkv.machine import PS_PER_S, Machine
from nearkv.pipeline.beta import require_fraction
from nearkv.pipeline.roles import find_roles
from nearkv.pipeline.work import FLOPS_PER_MAC, KEYS_AND_VALUES, ModelGeometry


class Recovery(Enum):
    """How a sequence's rows come back."""

    FETCH = "fetch"
    RECOMPUTE = "recompute"


@dataclass(frozen=True)
class RecoveryTimes:
    """Both ways, for one sequence.

    Attributes:
        tier: that holds the rows.
        kv_bytes: of the sequence.
        fetch_ps, recompute_ps: either way.

    """

    tier: str
    kv_bytes: int
    fetch_ps: int
    recompute_ps: int

    @property
    def faster(self) -> Recovery:
        """What to choose; a tie fetches, which leaves the GPU free."""
        return Recovery.FETCH if self.fetch_ps <= self.recompute_ps else Recovery.RECOMPUTE

    @property
    def break_even_bytes_per_s(self) -> float:
        """Rate above which fetching is faster."""
        return self.kv_bytes * PS_PER_S / self.recompute_ps

    @property
    def warning(self) -> str:
        """One sentence where offloading to the tier does not pay; "" where it does."""
        if self.faster is Recovery.FETCH:
            return ""
        rate = self.kv_bytes * PS_PER_S / self.fetch_ps
        return (
            f"fetching from {self.tier} at {rate / 1e9:.2f} GB/s is slower than computing again; it pays from"
            f" {self.break_even_bytes_per_s / 1e9:.2f} GB/s"
        )


def recovery_times(
    machine: Machine, model: ModelGeometry, tokens: int, tier: str, *, computed_share: float = 1.0
) -> RecoveryTimes:
    """Times for one sequence of `tokens` tokens whose rows lie in `tier`.

    Args:
        machine: the machine.
        model: its shape.
        tokens: of the sequence, from 1.
        tier: name of a tier.
        computed_share: newest share of the sequence that would have to be computed, above 0, to 1.

    Raises:
        ValueError: a value out of range, an unknown tier, or the GPU's own.

    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens!r}; allowed: from 1")
    require_fraction("computed_share", computed_share)
    roles = find_roles(machine)
    computed = max(1, round(tokens * computed_share))
    token_bytes = KEYS_AND_VALUES * model.layers * model.kv_heads * model.head_dim * model.bytes_per_value
    layer = model.qkv_parameters + model.output_parameters + model.ffn_parameters
    # Causal: token t attends t + 1 rows; scores and weighted values are a multiply-add each.
    pairs = computed * (2 * tokens - computed + 1) // 2
    attention = 2 * FLOPS_PER_MAC * model.layers * model.query_heads * model.head_dim * pairs
    flops = FLOPS_PER_MAC * computed * model.layers * layer + attention
    nbytes = model.layers * layer * model.bytes_per_value + token_bytes * tokens
    return RecoveryTimes(
        tier,
        token_bytes * computed,
        machine.transfer(tier, roles.gpu_tier, token_bytes * computed).time_ps,
        machine.compute(roles.gpu, flops, nbytes).time_ps,
    )
