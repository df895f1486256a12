"""Where weights and KV cache lie on a machine, and how much of a cache it holds."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.machine import MachineDescription, TierKind


@dataclass(frozen=True)
class TierFill:
    """What a tier holds, in bytes, of the `kv_room_bytes` that its weights leave for KV."""

    tier: str
    weight_bytes: int
    kv_bytes: int
    kv_room_bytes: int


@dataclass(frozen=True)
class MachineFill:
    """A machine's tiers with their contents, in the machine file's order, and what found no place."""

    tiers: tuple[TierFill, ...]
    weight_bytes_left: int
    kv_bytes_left: int

    @property
    def fits(self) -> bool:
        """Whether everything has a place."""
        return not (self.weight_bytes_left or self.kv_bytes_left)

    @property
    def kv_room_bytes(self) -> int:
        """KV cache that the machine holds beside the weights."""
        return sum(tier.kv_room_bytes for tier in self.tiers)


def fill_tiers(description: MachineDescription, weight_bytes: int, kv_bytes: int) -> MachineFill:
    """Fill the tiers in order, weights first.

    Card memory holds key codes only and PIM memory KV only; where there is PIM memory, the GPUs' own belongs
    to the weights.
    """
    has_pim = any(tier.kind is TierKind.PIM_MEMORY for tier in description.tiers)
    found = []
    for tier in description.tiers:
        room = 0 if tier.kind is TierKind.CARD_MEMORY else tier.capacity_bytes
        weights = 0 if tier.kind is TierKind.PIM_MEMORY else min(weight_bytes, room)
        weight_bytes -= weights
        room = 0 if has_pim and tier.kind is TierKind.GPU_MEMORY else room - weights
        rows = min(kv_bytes, room)
        kv_bytes -= rows
        found.append(TierFill(tier.name, weights, rows, room))
    return MachineFill(tuple(found), weight_bytes, kv_bytes)
