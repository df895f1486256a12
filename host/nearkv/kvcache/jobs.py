"""Moves of single rows: fetch for attention, promote from home, shift between row tiers."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from nearkv.kvcache.block_table import NOWHERE, pack_place, slot_of
from nearkv.kvcache.block_tier import BlockTier
from nearkv.kvcache.moves import MoveJob, MoveState
from nearkv.kvcache.rows import Records, RowIndex
from nearkv.kvcache.tier_set import Mask, TierSet
from nearkv.kvcache.tiers import RowTier, Slots, SlotState

_NO_SLOTS: Slots = np.empty(0, np.int64)


class _RowsJob(MoveJob):
    """Rows from one tier; goes on without the bad ones."""

    def __init__(self, tiers: TierSet, rows: RowIndex, source: str, target: str) -> None:
        self.tiers, self.rows, self.source, self.target = tiers, rows, source, target

    def check(self, records: Records) -> Mask:
        """Identity, generation and check value."""
        return self.tiers.good(records, self.rows)

    def make_room(self) -> bool:
        """A row tier has no hidden limit: nothing to give up."""
        return False


class FetchJob(_RowsJob):
    """Home rows for one attention step, into the caller's memory; they get no slot.

    Attributes:
        result: records of `rows` once the move is committed, else None.

    """

    urgent = True

    def __init__(self, tiers: TierSet, home: BlockTier, rows: RowIndex) -> None:
        super().__init__(tiers, rows, home.name, tiers.row_tiers[0].name)
        self.result: Records | None = None
        self._home = home

    def reserve(self) -> bool:
        """Nothing to take."""
        return True

    def gather(self) -> Records:
        """Read the home copies."""
        return self._home.read(self.rows)

    def accept(self, good: Mask) -> bool:
        """The caller finds the bad rows missing."""
        self.rows = self.rows[good]
        return True

    def scatter(self, records: Records) -> None:
        """Copy out of the staging buffer, which others will use."""
        self.result = records[np.arange(len(records))]

    def settle(self, state: MoveState) -> None:
        """Only an acknowledged transfer counts."""
        if state is not MoveState.COMMITTED:
            self.result = None


class _SlotsJob(_RowsJob):
    """Rows that get slots of a row tier."""

    def __init__(self, tiers: TierSet, rows: RowIndex, source: str, target: int, *, down: bool) -> None:
        super().__init__(tiers, rows, source, tiers.row_tiers[target].name)
        self._number, self._tier, self._down = target, tiers.row_tiers[target], down
        self._slots = _NO_SLOTS

    def reserve(self) -> bool:
        """Take free slots; those of the reserve are for moves down alone."""
        if len(self.rows) > self._tier.free - (0 if self._down else self._tier.reserve_rows):
            return False
        self._slots = self._tier.take(len(self.rows), SlotState.MOVING)
        return True

    def accept(self, good: Mask) -> bool:
        """Bad rows stay where they are; their slots become free."""
        self._stay(self.rows[~good])
        self._tier.release(self._slots[~good])
        self.rows, self._slots = self.rows[good], self._slots[good]
        return True

    def scatter(self, records: Records) -> None:
        """Write the slots."""
        self._tier.write(self._slots, records)

    def _give_up(self) -> None:
        self._stay(self.rows)
        self._tier.release(self._slots)

    @abstractmethod
    def _stay(self, rows: RowIndex) -> None:
        """Undo the marks of rows that do not move."""


class PromoteJob(_SlotsJob):
    """Home rows, each named once and without a copy, to a row tier: a move down is never among them."""

    def __init__(self, tiers: TierSet, home: BlockTier, rows: RowIndex, target: int) -> None:
        super().__init__(tiers, rows, home.name, target, down=False)
        self._home = home
        tiers.start_arriving(rows)

    def gather(self) -> Records:
        """Read the home copies."""
        return self._home.read(self.rows)

    def settle(self, state: MoveState) -> None:
        """Enter the copies as evictable ones, or give the slots back."""
        if state is not MoveState.COMMITTED:
            self._give_up()
            return
        self._tier.clear(self._slots, SlotState.MOVING)
        self.tiers.table.set_place(self.rows, pack_place(self._number, self._slots))
        self.tiers.metrics.promoted_rows += len(self.rows)

    def _stay(self, rows: RowIndex) -> None:
        self.tiers.table.set_place(rows, NOWHERE)


class ShiftJob(_SlotsJob):
    """Copies from one row tier to another, each named once and not moving; the old ones serve until then."""

    def __init__(self, tiers: TierSet, rows: RowIndex, source: int, target: int) -> None:
        self._from: RowTier = tiers.row_tiers[source]
        super().__init__(tiers, rows, self._from.name, target, down=target > source)
        self._from.mark(self._old_slots(rows), SlotState.MOVING)

    def gather(self) -> Records:
        """Read the old copies."""
        return self._from.read(self._old_slots(self.rows))

    def settle(self, state: MoveState) -> None:
        """Hand state and pins to the new copies and free the old ones, or leave those."""
        if state is not MoveState.COMMITTED:
            self._give_up()
            return
        old = self._old_slots(self.rows)
        self._tier.mark(self._slots[self._from.has(old, SlotState.DIRTY)], SlotState.DIRTY)
        self._tier.pin(self._slots, self._from.pins_of(old))
        self._tier.clear(self._slots, SlotState.MOVING)
        self._from.release(old)
        self.tiers.table.set_place(self.rows, pack_place(self._number, self._slots))
        self.tiers.metrics.shifted_rows += len(self.rows)

    def _stay(self, rows: RowIndex) -> None:
        self._from.clear(self._old_slots(rows), SlotState.MOVING)

    def _old_slots(self, rows: RowIndex) -> Slots:
        return slot_of(self.tiers.table.place_of(rows))
