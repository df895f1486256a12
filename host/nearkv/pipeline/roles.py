"""Which parts of a machine play which part in the pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.machine import Machine, TierKind


@dataclass(frozen=True)
class Roles:
    """Names in a machine; "" for what it does not have.

    Attributes:
        gpu, cpu, card: processors at GPU, host and card memory.
        gpu_tier, hot_tier, card_tier, cold_tier: GPU, host and card memory, and the drive.

    """

    gpu: str
    cpu: str
    card: str
    gpu_tier: str
    hot_tier: str
    card_tier: str
    cold_tier: str


def find_roles(machine: Machine) -> Roles:
    """Roles by kind of tier, the first of each kind.

    Raises:
        ValueError: no GPU with memory, host memory or drive.

    """
    tiers: dict[TierKind, str] = {}
    for tier in machine.description.tiers:
        tiers.setdefault(tier.kind, tier.name)
    for kind in (TierKind.GPU_MEMORY, TierKind.HOST_MEMORY, TierKind.DRIVE):
        if kind not in tiers:
            raise ValueError(
                f"machine {machine.name} has no tier of kind {kind.value}; the pipeline needs one"
            )
    processors: dict[str, str] = {}
    for processor in machine.description.processors:
        processors.setdefault(processor.tier, processor.name)
    at = {kind: processors.get(name, "") for kind, name in tiers.items()}
    if not at[TierKind.GPU_MEMORY]:
        raise ValueError(f"machine {machine.name} has no processor at {tiers[TierKind.GPU_MEMORY]}")
    return Roles(
        gpu=at[TierKind.GPU_MEMORY],
        cpu=at[TierKind.HOST_MEMORY],
        card=at.get(TierKind.CARD_MEMORY, ""),
        gpu_tier=tiers[TierKind.GPU_MEMORY],
        hot_tier=tiers[TierKind.HOST_MEMORY],
        card_tier=tiers.get(TierKind.CARD_MEMORY, ""),
        cold_tier=tiers[TierKind.DRIVE],
    )
