"""`TieredKVCache`: keys and values of many sequences over any number of tiers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from nearkv.codec.key_block import Float16
from nearkv.kvcache.block_table import BlockTable
from nearkv.kvcache.clock import Clock
from nearkv.kvcache.config import CacheConfig
from nearkv.kvcache.homes import BlockHomes
from nearkv.kvcache.lifecycle import Lifecycle, Rows
from nearkv.kvcache.metrics import CacheMetrics
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.mover import Mover
from nearkv.kvcache.placement import Placement, Placer, Wanted
from nearkv.kvcache.prefetch import Prefetch
from nearkv.kvcache.prefixes import PrefixIndex
from nearkv.kvcache.reader import RowReader, RowsRead
from nearkv.kvcache.rows import RowIndex
from nearkv.kvcache.sequences import SequenceState
from nearkv.kvcache.staging import StagingBuffers
from nearkv.kvcache.tier_set import TierSet
from nearkv.kvcache.tiers import Occupancy

_REMEMBERED_KEYS_PER_BLOCK = 4

Recompute = Callable[[str, RowIndex, RowIndex], None]


class TieredKVCache:
    """A cache of keys and values that an engine appends to and attends from.

    A row is one token's keys and values of one stream, written once, to the fastest row tier with room. A
    full block goes home to a block tier and stays there; copies in row tiers come and go. Words, states
    and guarantees: docs/kv-cache.md.

    Args:
        config: shape, tiers, limits.
        clock: simulated time.
        mover: carries bytes between tiers.
        on_recompute: told (sequence, streams int64 [n], tokens int64 [n]) of rows that a read found missing.

    Attributes:
        metrics: counters.
        engine: migration engine.

    Every method raises ValueError for an unknown sequence or one in another state than it needs.

    """

    def __init__(
        self, config: CacheConfig, clock: Clock, mover: Mover, on_recompute: Recompute | None = None
    ) -> None:
        self.config, self.clock = config, clock
        self.metrics = CacheMetrics()
        self._table = BlockTable(config.max_blocks, config.streams, config.block_tokens)
        self._tiers = TierSet(config.tiers, self._table, config.codec, self.metrics)
        batch_rows = config.batch_rows or config.good_batch_rows(mover.links)
        staging_rows = max(batch_rows, config.block_rows)
        staging = StagingBuffers(config.staging_buffers, staging_rows, config.codec.record_bytes)
        self.engine = MigrationEngine(clock, mover, staging, self.metrics)
        prefixes = PrefixIndex(_REMEMBERED_KEYS_PER_BLOCK * config.max_blocks, config.min_seen)
        self._homes = BlockHomes(self._tiers, self.engine, prefixes, config.timeout_ps)
        self._reader = RowReader(self._tiers, self.engine, batch_rows, config.timeout_ps)
        self._placer = Placer(self._tiers, self.engine, self._reader, batch_rows)
        self._lifecycle = Lifecycle(self._tiers, self.engine, self._homes, self._reader)
        self._sequences = self._lifecycle.sequences
        self._on_recompute = on_recompute
        self._rows_read: list[RowIndex] = []

    @property
    def metadata_bytes(self) -> int:
        """Bytes of block table, hit rates and slot bookkeeping."""
        return self._tiers.metadata_bytes

    def sequences(self) -> list[str]:
        """Names of the sequences held, in the order they were started."""
        return self._sequences.names()

    def tokens(self, name: str) -> int:
        """Length of a sequence."""
        return self._sequences.get(name).tokens

    def state(self, name: str) -> SequenceState:
        """Running or preempted."""
        return self._sequences.get(name).state

    def start(self, name: str, prefix_keys: Sequence[Hashable] = ()) -> int:
        """Start a sequence; returns how many tokens of its prompt are here already.

        Args:
            name: not in use.
            prefix_keys: of the prompt's full blocks, each standing for all tokens up to its end
                (`nearkv.kvcache.prefixes.prefix_keys`). The blocks found are shared and pinned from now on.

        """
        return self._lifecycle.start(name, prefix_keys).tokens

    def append(self, name: str, keys: Float16, values: Float16) -> None:
        """Append tokens to a running sequence: `step` for one, without the end of a decode step."""
        self._lifecycle.append({name: (keys, values)})

    def step(self, batch: Mapping[str, Rows]) -> None:
        """End a decode step: append each sequence's new rows, all or none; update hit rates.

        Args:
            batch: keys and values by sequence, float16 [streams, n, head_dim] each.

        Raises:
            ValueError: another dtype or shape, Inf or NaN.
            CapacityError: no room even after all full blocks were stored.

        """
        self._lifecycle.append(batch)
        held = [self._sequences.get(name).blocks for name in batch]
        if held:
            read = np.concatenate(self._rows_read) if self._rows_read else np.empty(0, np.int64)
            self._table.count_hits(np.unique(np.concatenate(held)), read)
        self._rows_read.clear()
        self._reader.forget()
        self._homes.retry_stores()
        for name in self._sequences.names():
            sequence = self._sequences.get(name)
            sequence.moves = {move: None for move in sequence.moves if not move.state.final}
        self.occupancy()

    def preempt(self, name: str) -> None:
        """Free a running sequence's slots: what only row tiers hold is written home first."""
        self._lifecycle.preempt(name)

    def resume(self, name: str) -> None:
        """Let a preempted sequence run again, after its stores under way; its tail is brought back.

        Raises:
            CapacityError: no room for the tail.
            TransferError: a row of the tail is lost, or could not be read twice.

        """
        self._lifecycle.resume(name)

    def fork(self, name: str, new_name: str, tokens: int) -> None:
        """Start a sequence with the first tokens of another.

        Raises:
            ValueError: more tokens than there are, or a name in use.
            CapacityError: no room to copy the last, partial block.
            TransferError: a row to copy is lost, or could not be read twice.

        """
        self._lifecycle.fork(name, new_name, tokens)

    def free(self, name: str) -> None:
        """End a finished sequence; its full blocks with a prefix key are kept if they are worth a write."""
        self._lifecycle.free(name, keep=True)

    def cancel(self, name: str) -> None:
        """End a sequence at once, in any state; what nobody else holds is discarded."""
        self._lifecycle.free(name, keep=False)

    def read(self, name: str, streams: ArrayLike, tokens: ArrayLike) -> RowsRead:
        """Rows for attention, wherever they are, each checked for identity, generation and CRC32C.

        Args:
            name: a running sequence.
            streams, tokens: integers, broadcast against each other and flattened: n rows.

        Returns:
            rows in that order. Missing ones have been reported for recomputation; `restore` takes them back.

        """
        sequence = self._sequences.get(name, SequenceState.RUNNING)
        stream, token = self._sequences.check_rows(sequence, streams, tokens)
        rows = self._table.rows(sequence.blocks, stream, token)
        records, hot, missing = self._reader.collect(rows)
        self._rows_read.append(rows)
        self.metrics.hot_rows += int(np.count_nonzero(hot))
        self.metrics.loaded_rows += int(np.count_nonzero(~hot & ~missing))
        records.data[missing] = 0
        if missing.any():
            self.metrics.missing_rows += int(np.count_nonzero(missing))
            if self._on_recompute is not None:
                self._on_recompute(name, stream[missing], token[missing])
        keys, values = self._tiers.codec.rows_of(records.data)
        return RowsRead(keys, values, hot, missing)

    def restore(
        self, name: str, streams: ArrayLike, tokens: ArrayLike, keys: Float16, values: Float16
    ) -> None:
        """Take rows back that were computed again, float16 [n, head_dim] each; each row named once.

        Every copy is overwritten, the home copy too. ValueError for another shape or dtype, or a row twice.
        """
        self._reader.restore(self._rows(name, streams, tokens), keys, values)

    def place(self, name: str, wanted: Wanted, timeout_ps: int | None = None) -> Placement:
        """Start to make the copies in row tiers those that a policy wants.

        Args:
            name: a running sequence.
            wanted: int8 [streams, tokens]: number of the row tier, fastest 0, COLD or KEEP.
            timeout_ps: of each move; None for the cache's.

        """
        sequence = self._sequences.get(name, SequenceState.RUNNING)
        return self._placer.place(sequence, wanted, self.config.timeout_of(timeout_ps))

    def prefetch(
        self, name: str, streams: ArrayLike, tokens: ArrayLike, tier: int = 0, timeout_ps: int | None = None
    ) -> Prefetch:
        """Rows to be brought up to a row tier once `query` or `wait` is called on what is returned."""
        sequence = self._sequences.get(name, SequenceState.RUNNING)
        if not 0 <= tier < len(self._tiers.row_tiers):
            raise ValueError(f"tier is {tier}; allowed: 0 to {len(self._tiers.row_tiers) - 1}")
        rows, limit_ps = np.unique(self._rows(name, streams, tokens)), self.config.timeout_of(timeout_ps)
        return Prefetch(
            self._tiers,
            self.engine,
            rows,
            bring=lambda: self._placer.bring(sequence, rows, tier, limit_ps),
            is_running=lambda: self._sequences.runs(sequence),
        )

    def pin(self, name: str, streams: ArrayLike, tokens: ArrayLike) -> int:
        """Keep rows in row tiers until they are unpinned or the sequence is preempted or ended.

        Returns how many of them (each counted once) have a copy there; the others are not pinned.
        """
        sequence = self._sequences.get(name, SequenceState.RUNNING)
        return len(self._lifecycle.pin(sequence, self._rows(name, streams, tokens)))

    def unpin(self, name: str, streams: ArrayLike, tokens: ArrayLike) -> None:
        """Take back pins of this sequence."""
        self._lifecycle.unpin(self._sequences.get(name), self._rows(name, streams, tokens))

    def tier_numbers(self, name: str) -> Wanted:
        """Row tier of every row's copy, int8 [streams, tokens]; COLD where there is none."""
        return self._placer.tier_numbers(self._sequences.get(name))

    def occupancy(self) -> dict[str, Occupancy]:
        """Slots of every tier, counted anew; RuntimeError if free + pinned + evictable is not the total."""
        return self._tiers.occupancy()

    def _rows(self, name: str, streams: ArrayLike, tokens: ArrayLike) -> RowIndex:
        sequence = self._sequences.get(name)
        return self._table.rows(sequence.blocks, *self._sequences.check_rows(sequence, streams, tokens))
