"""All tiers of a cache under one block table: finding, taking and giving up copies, by whole arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nearkv.kvcache.block_table import (
    ARRIVING,
    MAX_ROW_TIERS,
    NOWHERE,
    SLOT_BITS,
    BlockTable,
    Place,
    pack_place,
    slot_of,
    tier_of,
)
from nearkv.kvcache.block_tier import BlockTier, DriveBudget
from nearkv.kvcache.metrics import CacheMetrics
from nearkv.kvcache.rows import Records, RowCodec, RowIndex, empty_records
from nearkv.kvcache.tiers import Occupancy, RowTier, Slots, SlotState, TierConfig, TierRole

Mask = NDArray[np.bool_]


class TierSet:
    """Row tiers and block tiers, each fastest first.

    Args:
        configs: the tiers; at least one of each role.
        table: the block table.
        codec: makes and checks records.
        metrics: counters to raise.

    Raises ValueError for a role without a tier, a name given twice, too many or too large row tiers.

    """

    def __init__(
        self, configs: Sequence[TierConfig], table: BlockTable, codec: RowCodec, metrics: CacheMetrics
    ) -> None:
        names = [config.name for config in configs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"tier {name!r} is given {names.count(name)} times; allowed: once")
        row_configs = [config for config in configs if config.role is TierRole.ROWS]
        block_configs = [config for config in configs if config.role is TierRole.BLOCKS]
        if not (1 <= len(row_configs) <= MAX_ROW_TIERS and block_configs):
            raise ValueError(
                f"{len(row_configs)} row tiers and {len(block_configs)} block tiers; allowed: 1 to"
                f" {MAX_ROW_TIERS} and from 1"
            )
        self.table, self.codec, self.metrics = table, codec, metrics
        self.row_tiers = [RowTier(config, codec.record_bytes) for config in row_configs]
        for tier in self.row_tiers:
            if tier.total > 1 << SLOT_BITS:
                raise ValueError(f"{tier.name} holds {tier.total} rows; allowed: to {1 << SLOT_BITS}")
        drives: dict[str, DriveBudget] = {}
        for config in block_configs:
            drive = drives.setdefault(config.drive or config.name, DriveBudget())
            drive.capacity_bytes += config.capacity_bytes
        self.block_tiers = [
            BlockTier(
                config,
                table.block_rows,
                codec.record_bytes,
                drives[config.drive or config.name],
                len(table.home),
            )
            for config in block_configs
        ]

    @property
    def metadata_bytes(self) -> int:
        """Bytes of block table and slot bookkeeping; records and their headers are not among them."""
        row_tiers = sum(tier.metadata_bytes for tier in self.row_tiers)
        return self.table.metadata_bytes + row_tiers + sum(tier.metadata_bytes for tier in self.block_tiers)

    @property
    def room_rows(self) -> int:
        """Rows that could be written now: free slots without the reserves, and evictable ones."""
        return sum(max(tier.free - tier.reserve_rows, 0) + tier.evictable for tier in self.row_tiers)

    def occupancy(self) -> dict[str, Occupancy]:
        """Slots of every tier, counted anew; RuntimeError if they do not add up."""
        counts = {tier.name: tier.occupancy() for tier in self.row_tiers}
        return counts | {tier.name: tier.occupancy() for tier in self.block_tiers}

    def parts(self, place: Place) -> Iterator[tuple[RowTier, int, Mask, Slots]]:
        """Copies by row tier: tier, its number, which of `place` are there, their slots."""
        number_of = tier_of(place)
        if not len(place) or number_of.max() < 0:
            return
        for number, tier in enumerate(self.row_tiers):
            here = number_of == number
            if here.any():
                yield tier, number, here, slot_of(place[here])

    def write_new(self, records: Records) -> None:
        """Write rows that have no copy anywhere, fastest tier first, as the only copy.

        Raises ValueError without room: see `room_rows`.
        """
        if len(records) > self.room_rows:
            raise ValueError(f"{len(records)} rows are to be written; allowed: {self.room_rows}")
        start = 0
        for number, tier in enumerate(self.row_tiers):
            count = min(len(records) - start, max(tier.free - tier.reserve_rows, 0) + tier.evictable)
            self._evict(tier, count - max(tier.free - tier.reserve_rows, 0))
            slots = tier.take(count, SlotState.DIRTY)
            part = records[slice(start, start + count)]
            tier.write(slots, part)
            self.table.set_place(part.rows, pack_place(number, slots))
            start += count

    def _evict(self, tier: RowTier, count: int) -> None:
        """Give up the copies with the lowest hit rates."""
        if count <= 0:
            return
        slots = tier.evictable_slots()
        rates = self.table.rate_of(tier.rows_at(slots))
        victims = slots[np.argpartition(rates, count - 1)[:count]] if count < len(slots) else slots
        self.table.set_place(tier.rows_at(victims), NOWHERE)
        tier.release(victims)
        self.metrics.evicted_rows += len(victims)
        self.metrics.dropped_rows += len(victims)

    def drop_copies(self, rows: RowIndex, *, only_evictable: bool = True) -> int:
        """Give up copies in row tiers; returns how many. Rows that are not there are passed over.

        Args:
            rows: each named once.
            only_evictable: leave the others; False gives up the only copies of freed blocks, too.

        """
        dropped = 0
        for tier, _, here, slots in self.parts(self.table.place_of(rows)):
            loose = np.ones(len(slots), np.bool_)
            if only_evictable:
                loose = ~tier.has(slots, SlotState.DIRTY | SlotState.MOVING) & (tier.pins_of(slots) == 0)
            self.table.set_place(rows[here][loose], NOWHERE)
            tier.release(slots[loose])
            dropped += int(np.count_nonzero(loose))
        return dropped

    def write_copies(self, records: Records, number: int) -> int:
        """Write evictable copies of home rows without one, as many as there are slots; returns how many."""
        tier = self.row_tiers[number]
        count = min(len(records), max(tier.free - tier.reserve_rows, 0))
        slots, part = tier.take(count, SlotState.USED), records[slice(0, count)]
        tier.write(slots, part)
        self.table.set_place(part.rows, pack_place(number, slots))
        return count

    def pin(self, rows: RowIndex, change: int) -> None:
        """Change the pin counts of copies in row tiers; each row named once."""
        for tier, _, _, slots in self.parts(self.table.place_of(rows)):
            tier.pin(slots, change)

    def mark_clean(self, rows: RowIndex) -> None:
        """A lower copy of rows is committed."""
        for tier, _, _, slots in self.parts(self.table.place_of(rows)):
            tier.clear(slots, SlotState.DIRTY)

    def is_marked(self, rows: RowIndex, state: int) -> Mask:
        """Which rows have a copy in a row tier with any of the bits."""
        marked = np.zeros(len(rows), np.bool_)
        for tier, _, here, slots in self.parts(self.table.place_of(rows)):
            marked[here] = tier.has(slots, state)
        return marked

    def read_copies(self, rows: RowIndex) -> Records:
        """Records of rows in row tiers, unchecked; rows without a copy pass no check."""
        records = empty_records(len(rows), self.codec.record_bytes)
        for tier, _, here, slots in self.parts(self.table.place_of(rows)):
            records.copy_from(np.flatnonzero(here), tier.read(slots))
        return records

    def has_home(self, rows: RowIndex) -> Mask:
        """Which rows have a committed copy in a block tier."""
        block = self.table.block_of(rows)
        offset = rows % self.table.block_tokens
        found: Mask = (self.table.home[block] != NOWHERE) & (offset < self.table.home_tokens[block])
        return found

    def by_home(self, rows: RowIndex) -> Iterator[tuple[BlockTier, RowIndex]]:
        """Rows with a home copy, by block tier."""
        home = self.table.home[self.table.block_of(rows)]
        for number, tier in enumerate(self.block_tiers):
            if len(here := rows[home == number]):
                yield tier, here

    def good(self, records: Records, rows: RowIndex) -> Mask:
        """Which records are unharmed and those of `rows` in their present generation."""
        return self.codec.good(records, rows, self.table.generation_of(rows))

    def start_arriving(self, rows: RowIndex) -> None:
        """A copy of home rows is on its way up: nobody else starts one."""
        self.table.set_place(rows, ARRIVING)
