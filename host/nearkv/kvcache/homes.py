"""Life of blocks: stored to a block tier, kept for their prefix, evicted, discarded."""

from __future__ import annotations

from collections.abc import Iterable

from nearkv.kvcache.block_table import NOWHERE
from nearkv.kvcache.block_tier import BlockTier
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.moves import Move, MoveState
from nearkv.kvcache.prefixes import PrefixIndex
from nearkv.kvcache.store_job import StoreJob
from nearkv.kvcache.tier_set import TierSet


class BlockHomes:
    """Gives block numbers and home slots, and takes them back.

    A block is *live* while a sequence references it, then *kept* (home copy, no reference, evictable) or
    discarded.

    Args:
        tiers: the tiers.
        engine: carries stores.
        prefixes: what is kept, and what is worth a write.
        timeout_ps: of a store.

    Attributes:
        unstored: full blocks without a home copy.
        leaving: tokens by block, of blocks that give up their copies in row tiers as soon as the home copy is
            committed.

    """

    def __init__(
        self, tiers: TierSet, engine: MigrationEngine, prefixes: PrefixIndex, timeout_ps: int
    ) -> None:
        self.tiers, self.engine, self.prefixes, self.timeout_ps = tiers, engine, prefixes, timeout_ps
        self.unstored: dict[int, None] = {}
        self.leaving: dict[int, int] = {}
        self._stores: dict[int, Move] = {}

    @property
    def kept_blocks(self) -> int:
        """Blocks that can be evicted, all tiers together."""
        return sum(tier.evictable for tier in self.tiers.block_tiers)

    @property
    def available_blocks(self) -> int:
        """Block numbers to be had, those of kept blocks included."""
        return self.tiers.table.free_blocks + self.kept_blocks

    def take_block(self) -> int:
        """A block number, at the price of the kept block unused for longest if there is no other."""
        if not self.tiers.table.free_blocks:
            full = [tier for tier in self.tiers.block_tiers if tier.evictable]
            self.evict(full[-1])
        return self.tiers.table.take()

    def evict(self, tier: BlockTier) -> bool:
        """Discard the kept block unused for longest; False if none is kept there."""
        block = tier.oldest_evictable()
        if block is None:
            return False
        self.tiers.metrics.evicted_blocks += 1
        self.discard(block)
        return True

    def reference(self, block: int) -> None:
        """A further sequence holds the block, which is pinned from now on."""
        table = self.tiers.table
        table.references[block] += 1
        self.leaving.pop(block, None)
        if table.references[block] == 1 and table.home[block] != NOWHERE:
            self.tiers.block_tiers[table.home[block]].set_pinned(block, True)

    def dereference(self, block: int, *, keep: bool) -> None:
        """A sequence lets go; the last one's block is kept if it is asked to and worth it."""
        table = self.tiers.table
        table.references[block] -= 1
        if table.references[block]:
            return
        if not (keep and self.prefixes.offers(block)):
            self.discard(block)
        elif table.home[block] != NOWHERE:
            self._keep(block)
        elif block in self._stores or self._is_worth_a_write(block):
            self.leave(block, table.block_tokens)
        else:
            self.tiers.metrics.refused_blocks += 1
            self.discard(block)

    def full(self, block: int) -> None:
        """A block has all its tokens: store it now if it is worth that, else when room is needed."""
        self.unstored[block] = None
        eager = self.prefixes.min_seen == 1 and any(tier.free for tier in self.tiers.block_tiers)
        if eager or self._is_worth_a_write(block):
            self.store(block, self.tiers.table.block_tokens)

    def leave(self, block: int, tokens: int) -> None:
        """Give up the copies in row tiers, now or as soon as the first `tokens` tokens are home."""
        if self.store(block, tokens) is None:
            self.drop_copies(block)
        else:
            self.leaving[block] = tokens

    def store(self, block: int, tokens: int) -> Move | None:
        """Write a block's first tokens home; None if that is done, the move under way if there is one."""
        if self.tiers.table.home_tokens[block] >= tokens:
            return None
        if block not in self._stores:
            job = StoreJob(self, block, tokens)
            self._stores[block] = self.engine.submit(job, self.timeout_ps)
        return self._stores[block]

    def stores(self, blocks: Iterable[int]) -> list[Move]:
        """Stores under way of these blocks."""
        return [self._stores[block] for block in blocks if block in self._stores]

    def retry_stores(self) -> None:
        """Store again what is due and has no store under way: it failed, or found no room."""
        for block in self.unstored.keys() - self._stores.keys():
            self.full(block)
        for block in self.leaving.keys() - self._stores.keys():
            self.store(block, self.leaving[block])

    def store_all(self) -> None:
        """Store every full block, whether worth a write or not: room is needed."""
        for block in tuple(self.unstored):
            self.store(block, self.tiers.table.block_tokens)

    def stored(self, block: int, state: MoveState) -> None:
        """Called by a store that ended, after its home copy was entered or given back."""
        if self._stores.pop(block, None) is None:
            return  # discarded
        committed = state is MoveState.COMMITTED
        if committed:
            self.unstored.pop(block, None)
        if self.tiers.table.references[block] == 0:
            self.leaving.pop(block, None)
            (self._keep if committed else self.discard)(block)
        elif committed and block in self.leaving:
            self.leaving.pop(block, None)
            self.drop_copies(block)

    def drop_copies(self, block: int) -> None:
        """Give up the copies in row tiers that have a lower one and that nothing holds."""
        if self.tiers.table.has_copies(block):
            rows = self.tiers.table.rows_of_block(block, self.tiers.table.block_tokens)
            self.tiers.metrics.dropped_rows += self.tiers.drop_copies(rows)

    def release_home(self, block: int) -> None:
        """Give up the home copy, as of a tail that is up again."""
        table = self.tiers.table
        self.tiers.block_tiers[table.home[block]].release(block)
        table.home[block], table.home_tokens[block] = NOWHERE, 0

    def discard(self, block: int) -> None:
        """Give up everything of a block without references, also a store under way."""
        table = self.tiers.table
        self.unstored.pop(block, None)
        self.leaving.pop(block, None)
        self.prefixes.forget(block)
        if (move := self._stores.pop(block, None)) is not None:
            self.engine.cancel(move)
        if table.has_copies(block):
            rows = table.rows_of_block(block, table.block_tokens)
            self.tiers.drop_copies(rows, only_evictable=False)
        if table.home[block] != NOWHERE:
            self.release_home(block)
        table.release(block)

    def take_home(self, block: int) -> int:
        """Number of the block tier that gave a slot, by eviction if it must; NOWHERE if none can."""
        for number, tier in enumerate(self.tiers.block_tiers):
            if tier.take(block):
                return number
        for number, tier in enumerate(self.tiers.block_tiers):
            if self.evict(tier) and tier.take(block):
                return number
        return NOWHERE

    def _keep(self, block: int) -> None:
        self.drop_copies(block)
        self.tiers.block_tiers[self.tiers.table.home[block]].set_pinned(block, False)

    def _is_worth_a_write(self, block: int) -> bool:
        tiers = self.tiers.block_tiers
        if any(tier.free for tier in tiers):
            return self.prefixes.is_worth_a_write(block, None)
        victims = [tier.oldest_evictable() for tier in tiers if tier.evictable]
        return bool(victims) and self.prefixes.is_worth_a_write(block, victims[0])
