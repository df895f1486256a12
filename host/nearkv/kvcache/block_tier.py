"""The block tier: the home of sealed blocks, inclusive, with the drive's budget and entry limit."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from nearkv.kvcache.rows import Records, RowIndex, empty_records
from nearkv.kvcache.tiers import HEADER_BYTES, Occupancy, Slots, TierConfig

_NO_SLOT = -1


@dataclass
class DriveBudget:
    """Bytes of one drive, shared by the block tiers on it.

    Attributes:
        capacity_bytes: sum of the capacities of its tiers.
        used_bytes: slots given out.

    """

    capacity_bytes: int = 0
    used_bytes: int = 0


class BlockTier:
    """Slots of one block each (all streams, `block_rows` rows), found by block number.

    Every block in it is *pinned* (a sequence or a move needs it) or *evictable* (kept for a later prompt with
    the same prefix); of the evictable ones the one unused for longest goes first. Constant time per
    operation; rows are read and written by whole arrays.
    """

    def __init__(
        self, config: TierConfig, block_rows: int, record_bytes: int, drive: DriveBudget, max_slots: int
    ) -> None:
        """Make all slots free; ValueError if none fits.

        Args:
            config: the tier.
            block_rows: rows of a block, all streams together.
            record_bytes: of a row.
            drive: budget of its drive, already holding this tier's capacity.
            max_slots: block numbers of the cache.

        """
        self.name = config.name
        self.block_rows = block_rows
        self.slot_bytes = block_rows * (record_bytes + HEADER_BYTES)
        fits = drive.capacity_bytes // self.slot_bytes
        self.total = min(fits, config.max_blocks or fits, max_slots)
        if self.total < 1:
            raise ValueError(
                f"capacity_bytes of {config.name} is {config.capacity_bytes}; allowed: from {self.slot_bytes}"
            )
        self._drive = drive
        self.records = empty_records(self.total * block_rows, record_bytes)
        self._free = list(range(self.total))[::-1]
        self._slot = np.full(max_slots, _NO_SLOT, np.int32)  # of each block
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Slots that can be given out now: free ones that drive and entry limit still allow."""
        left = (self._drive.capacity_bytes - self._drive.used_bytes) // self.slot_bytes
        return min(len(self._free), left)

    @property
    def evictable(self) -> int:
        """Blocks that may be evicted."""
        return len(self._evictable)

    def oldest_evictable(self) -> int | None:
        """Block that is evicted next."""
        return next(iter(self._evictable), None)

    def take(self, block: int) -> bool:
        """Give a block a slot, pinned; False, and nothing happens, if there is none.

        Raises ValueError for a block that has one.
        """
        if self._slot[block] != _NO_SLOT:
            raise ValueError(f"block {block} is in {self.name} already; allowed: a block without a slot")
        if self.free < 1:
            return False
        self._slot[block] = self._free.pop()
        self._drive.used_bytes += self.slot_bytes
        return True

    def release(self, block: int) -> None:
        """Free a block's slot; what it held is erased."""
        slot = int(self._slot[block])
        self._slot[block] = _NO_SLOT
        self._evictable.pop(block, None)
        self._drive.used_bytes -= self.slot_bytes
        self.records.rows[slot * self.block_rows : (slot + 1) * self.block_rows] = -1
        self._free.append(slot)

    def set_pinned(self, block: int, pinned: bool) -> None:
        """Keep a block, or let it be evicted: last of all that may be now."""
        if pinned:
            self._evictable.pop(block, None)
        else:
            self._evictable[block] = None

    def slots_of(self, blocks: RowIndex) -> Slots:
        """Slot of every block, int64 of the same length; ValueError for one that has none."""
        slots = self._slot[blocks].astype(np.int64)
        if len(slots) and slots.min() == _NO_SLOT:
            raise ValueError(
                f"block {blocks[slots == _NO_SLOT][0]} is not in {self.name}; allowed: one that is"
            )
        return slots

    def read(self, rows: RowIndex) -> Records:
        """Copies of the records of rows, unchecked; ValueError for one whose block has no slot."""
        return self.records[self._index(rows)]

    def write(self, rows: RowIndex, records: Records) -> None:
        """Overwrite the records of rows."""
        self.records.copy_from(self._index(rows), records)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of the table of slots."""
        return self._slot.nbytes

    def occupancy(self) -> Occupancy:
        """Counted anew; RuntimeError if the slots do not add up: a defect of this package."""
        used = self._slot[self._slot != _NO_SLOT]
        evictable = np.fromiter(self._evictable, np.int64, len(self._evictable))
        found = Occupancy(len(self._free), len(used) - len(evictable), len(evictable), self.total)
        slots = np.concatenate([used, np.array(self._free, np.int32)])
        whole = len(slots) == self.total and len(np.unique(slots)) == self.total
        if not whole or (self._slot[evictable] == _NO_SLOT).any():
            raise RuntimeError(f"slots of {self.name} count as {found}, {len(used)} of them used")
        if self._drive.used_bytes > self._drive.capacity_bytes:
            raise RuntimeError(f"drive of {self.name} holds {self._drive.used_bytes} bytes, more than it has")
        return found

    def _index(self, rows: RowIndex) -> Slots:
        block, row = np.divmod(rows, self.block_rows)
        return self.slots_of(block) * self.block_rows + row
