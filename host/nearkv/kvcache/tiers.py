"""Tiers as data, and the row tier: slots for single rows, managed by whole arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nearkv.kvcache.rows import Records, RowIndex, empty_records
from nearkv.machine import MachineDescription

Slots = NDArray[np.int64]

_DRIVE_PROFILES = "drive/"
HEADER_BYTES = 16  # of a record in a slot: logical address, generation, check value


class TierRole(Enum):
    """What a tier's slots hold."""

    ROWS = "rows"  # copies of single rows: where attention reads
    BLOCKS = "blocks"  # sealed blocks of all streams: the inclusive home of every row


@dataclass(frozen=True)
class TierConfig:
    """One tier of a cache.

    Attributes:
        name: the machine's name of it.
        role: rows or blocks.
        capacity_bytes: what records and their headers may take.
        reserve_rows: of a row tier: slots that only moves down from a faster tier may take, so that two full
            tiers can swap.
        max_blocks: of a block tier: most entries the device indexes; 0 for no limit but the capacity.
        drive: of a block tier: name of the drive whose bytes it shares with others; "" for a drive alone.

    ValueError for a value out of range, or one that the role does not use.

    """

    name: str
    role: TierRole
    capacity_bytes: int
    reserve_rows: int = 0
    max_blocks: int = 0
    drive: str = ""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.capacity_bytes < 1:
            raise ValueError(f"capacity_bytes of {self.name} is {self.capacity_bytes}; allowed: from 1")
        for field in ("reserve_rows", "max_blocks"):
            if (value := getattr(self, field)) < 0:
                raise ValueError(f"{field} of {self.name} is {value}; allowed: from 0")
        if self.role is TierRole.ROWS and (self.max_blocks or self.drive):
            raise ValueError(f"max_blocks and drive of {self.name} are given; allowed: of block tiers")
        if self.role is TierRole.BLOCKS and self.reserve_rows:
            raise ValueError(f"reserve_rows of {self.name} is {self.reserve_rows}; allowed: of row tiers")


def tiers_of(
    description: MachineDescription, capacity_bytes: Mapping[str, int], reserve_rows: int = 0
) -> tuple[TierConfig, ...]:
    """Tiers of a machine that a cache uses, fastest first.

    What consists of drives, those with processing units too, holds blocks; everything else rows.

    Args:
        description: the machine.
        capacity_bytes: share of each tier that is the cache's; those not named are not used.
        reserve_rows: of every row tier.

    Raises ValueError for a tier the machine does not have, or more than its capacity.

    """
    for name, nbytes in capacity_bytes.items():
        if nbytes > (most := description.tier(name).capacity_bytes):
            raise ValueError(f"capacity_bytes of {name} is {nbytes}; allowed: to {most}")
    return tuple(
        TierConfig(tier.name, TierRole.BLOCKS, capacity_bytes[tier.name])
        if tier.profile.startswith(_DRIVE_PROFILES)
        else TierConfig(tier.name, TierRole.ROWS, capacity_bytes[tier.name], reserve_rows)
        for tier in description.tiers
        if tier.name in capacity_bytes
    )


@dataclass(frozen=True)
class Occupancy:
    """Slots of a tier by what may become of them; the three always add up to `total`."""

    free: int
    pinned: int
    evictable: int
    total: int


class SlotState:
    """Bits of a slot's state; 0 is free."""

    USED = 1
    DIRTY = 2  # the only copy: no lower one is committed
    MOVING = 4  # source or target of a move under way


class RowTier:
    """Slots of one record each. Evictable is what is neither dirty, moving nor pinned by a caller.

    Bookkeeping is 7 bytes per slot (state, pin count, place in the list of free slots).
    """

    def __init__(self, config: TierConfig, record_bytes: int) -> None:
        """Make all slots free; ValueError if none fits, or the reserve takes them all."""
        self.name = config.name
        self.reserve_rows = config.reserve_rows
        self.total = config.capacity_bytes // (record_bytes + HEADER_BYTES)
        if self.total <= config.reserve_rows:
            raise ValueError(
                f"capacity_bytes of {config.name} is {config.capacity_bytes}, {self.total} rows; allowed:"
                f" more than its reserve of {config.reserve_rows} rows"
            )
        self.records = empty_records(self.total, record_bytes)
        self._state = np.zeros(self.total, np.uint8)
        self._pins = np.zeros(self.total, np.uint16)
        self._free = np.arange(self.total, dtype=np.int32)[::-1].copy()
        self._free_count = self.total
        self._pinned_count = 0

    @property
    def free(self) -> int:
        """Free slots, the reserve included."""
        return self._free_count

    @property
    def evictable(self) -> int:
        """Slots whose copy may be dropped."""
        return self.total - self._free_count - self._pinned_count

    @property
    def metadata_bytes(self) -> int:
        """Bytes of bookkeeping, without records and their headers."""
        return self._state.nbytes + self._pins.nbytes + self._free.nbytes

    def take(self, count: int, state: int) -> Slots:
        """Give out free slots in a state beside USED.

        Raises ValueError for more than are free; the caller keeps the reserve.
        """
        if count > self._free_count:
            raise ValueError(f"{count} slots of {self.name} are asked for; allowed: {self._free_count}")
        slots = self._free[self._free_count - count : self._free_count].astype(np.int64)
        self._free_count -= count
        self._state[slots] = SlotState.USED
        self.mark(slots, state)
        return slots

    def release(self, slots: Slots) -> None:
        """Make slots free, whatever they were; pins go with them."""
        self._pinned_count -= self._count_pinned(slots)
        self._state[slots] = 0
        self._pins[slots] = 0
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def mark(self, slots: Slots, state: int) -> None:
        """Set bits of used slots (each named once)."""
        before = self._count_pinned(slots)
        self._state[slots] |= np.uint8(state)
        self._pinned_count += self._count_pinned(slots) - before

    def clear(self, slots: Slots, state: int) -> None:
        """Clear bits of used slots (each named once)."""
        before = self._count_pinned(slots)
        self._state[slots] &= np.uint8(~state & 0xFF)
        self._pinned_count += self._count_pinned(slots) - before

    def pin(self, slots: Slots, change: int | NDArray[np.int32]) -> None:
        """Change the pin counts of used slots (each named once)."""
        before = self._count_pinned(slots)
        self._pins[slots] = self.pins_of(slots) + change
        self._pinned_count += self._count_pinned(slots) - before

    def pins_of(self, slots: Slots) -> NDArray[np.int32]:
        """Pin count of each slot."""
        return self._pins[slots].astype(np.int32)

    def has(self, slots: Slots, state: int) -> NDArray[np.bool_]:
        """Which slots have any of the bits: bool, shape of `slots`."""
        found: NDArray[np.bool_] = self._state[slots] & np.uint8(state) != 0
        return found

    def evictable_slots(self) -> Slots:
        """Slots whose copy may be dropped, ascending."""
        return np.flatnonzero((self._state == SlotState.USED) & (self._pins == 0))

    def rows_at(self, slots: Slots) -> RowIndex:
        """Logical address of the record in each slot."""
        return self.records.rows[slots]

    def read(self, slots: Slots) -> Records:
        """Copies of records, unchecked."""
        return self.records[slots]

    def write(self, slots: Slots, records: Records) -> None:
        """Overwrite slots."""
        self.records.copy_from(slots, records)

    def occupancy(self) -> Occupancy:
        """Counted anew from the slots.

        Raises RuntimeError if that differs from the running counts: a defect of this package.
        """
        free = int(np.count_nonzero(self._state == 0))
        evictable = len(self.evictable_slots())
        found = Occupancy(free, self.total - free - evictable, evictable, self.total)
        kept = Occupancy(self._free_count, self._pinned_count, self.evictable, self.total)
        if found != kept or len(np.unique(self._free[: self._free_count])) != free:
            raise RuntimeError(f"slots of {self.name} count as {found}, kept as {kept}")
        return found

    def _count_pinned(self, slots: Slots) -> int:
        state = self._state[slots]
        loose = (state <= SlotState.USED) & ((self._pins[slots] == 0) | (state == 0))
        return len(slots) - int(np.count_nonzero(loose))
