"""The move that writes a block home."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nearkv.kvcache.block_table import NOWHERE, tier_of
from nearkv.kvcache.block_tier import BlockTier
from nearkv.kvcache.moves import MoveJob, MoveState
from nearkv.kvcache.rows import Records
from nearkv.kvcache.tier_set import Mask, TierSet
from nearkv.kvcache.tiers import HEADER_BYTES


class Homes(Protocol):
    """What a store asks of those who give home slots."""

    tiers: TierSet

    def take_home(self, block: int) -> int:
        """Number of the block tier that gave a slot; NOWHERE if none can."""

    def evict(self, tier: BlockTier) -> bool:
        """Discard a kept block; False if none is kept there."""

    def stored(self, block: int, state: MoveState) -> None:
        """The store has ended."""


class StoreJob(MoveJob):
    """A block's first tokens, all streams, from row tiers to a block tier. Until it is committed the rows in
    the row tiers stay the only copies; whatever fails leaves them so.
    """

    def __init__(self, homes: Homes, block: int, tokens: int) -> None:
        table = homes.tiers.table
        self.rows = table.rows_of_block(block, tokens)
        number = int(np.bincount(np.maximum(tier_of(table.place_of(self.rows)), 0)).argmax())
        self.source = homes.tiers.row_tiers[number].name  # of most of its rows
        self.target = "any home"
        self._homes, self._block, self._tokens = homes, block, tokens
        self._number = NOWHERE

    def reserve(self) -> bool:
        """Take a home slot."""
        self._number = self._homes.take_home(self._block)
        if self._number == NOWHERE:
            return False
        self.target = self._homes.tiers.block_tiers[self._number].name
        return True

    def gather(self) -> Records:
        """Read the rows wherever they are by now."""
        return self._homes.tiers.read_copies(self.rows)

    def check(self, records: Records) -> Mask:
        """Identity, generation and check value."""
        return self._homes.tiers.good(records, self.rows)

    def accept(self, good: Mask) -> bool:
        """A home copy with holes is none."""
        return bool(good.all())

    def scatter(self, records: Records) -> None:
        """Write the slot."""
        self._homes.tiers.block_tiers[self._number].write(self.rows, records)
        record_bytes = self._homes.tiers.codec.record_bytes + HEADER_BYTES
        self._homes.tiers.metrics.block_bytes_written += len(records) * record_bytes

    def make_room(self) -> bool:
        """Evict a kept block of the same tier."""
        return self._homes.evict(self._homes.tiers.block_tiers[self._number])

    def settle(self, state: MoveState) -> None:
        """Enter the home copy, or give the slot back."""
        table = self._homes.tiers.table
        if state is MoveState.COMMITTED:
            table.home[self._block], table.home_tokens[self._block] = self._number, self._tokens
            self._homes.tiers.mark_clean(self.rows)
            self._homes.tiers.metrics.stored_blocks += 1
        elif self._number != NOWHERE:
            self._homes.tiers.block_tiers[self._number].release(self._block)
        self._homes.stored(self._block, state)
