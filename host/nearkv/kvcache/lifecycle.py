"""Sequences over blocks: append, preempt, resume, fork, free. What is refused changes nothing."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from nearkv.codec.key_block import Float16
from nearkv.kvcache.homes import BlockHomes
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.moves import MoveState
from nearkv.kvcache.reader import RowReader
from nearkv.kvcache.rows import RowIndex
from nearkv.kvcache.sequences import (
    CapacityError,
    SequenceRecord,
    SequenceState,
    SequenceTable,
    TransferError,
)
from nearkv.kvcache.tier_set import TierSet

Rows = tuple[Float16, Float16]


class Lifecycle:
    """What can be done to sequences.

    Args:
        tiers: the tiers.
        engine: the migration engine.
        homes: life of blocks.
        reader: reads rows that are copied or brought back.

    """

    def __init__(self, tiers: TierSet, engine: MigrationEngine, homes: BlockHomes, reader: RowReader) -> None:
        self.tiers, self.engine, self.homes, self.reader = tiers, engine, homes, reader
        self.table = tiers.table
        self.sequences = SequenceTable(self.table.streams, self.table.block_tokens)

    def start(self, name: str, keys: Sequence[Hashable]) -> SequenceRecord:
        """Start a sequence with the blocks that are kept or live of its prefix; they are pinned at once."""
        self.sequences.check_new(name)
        blocks = self.homes.prefixes.ask(keys)
        for block in blocks:
            self.homes.reference(block)
        return self.sequences.add(name, keys, blocks)

    def append(self, batch: Mapping[str, Rows]) -> None:
        """Append each sequence's rows, keys and values float16 [streams, n, head_dim]: all or none."""
        checked = {name: self._check_append(name, *rows) for name, rows in batch.items()}
        counts = {name: keys.shape[1] for name, (keys, _) in checked.items()}
        self.make_room(
            sum(counts.values()) * self.table.streams,
            sum(self._new_blocks(self.sequences.get(name), count) for name, count in counts.items()),
        )
        for name, (keys, values) in checked.items():
            self._append(self.sequences.get(name), keys, values)

    def preempt(self, name: str) -> None:
        """Write home what only row tiers hold, and give up the copies there as that is committed."""
        sequence = self.sequences.get(name, SequenceState.RUNNING)
        sequence.state = SequenceState.PREEMPTED
        self.let_go(sequence)
        for index, block in enumerate(sequence.blocks.tolist()):
            if self.table.references[block] == 1:
                left = sequence.tokens - index * self.table.block_tokens
                self.homes.leave(block, min(left, self.table.block_tokens))
        self.engine.pump()

    def resume(self, name: str) -> None:
        """Bring the tail back to row tiers, after the stores under way; the rest stays home."""
        sequence = self.sequences.get(name, SequenceState.PREEMPTED)
        blocks = sequence.blocks.tolist()
        for move in self.homes.stores(blocks):
            if move.state is MoveState.REGISTERED:
                self.engine.cancel(move)  # no home slot to be had: the rows are still up
        self.engine.wait(self.homes.stores(blocks))
        tail_tokens = sequence.tokens % self.table.block_tokens
        if tail_tokens and self.table.home_tokens[blocks[-1]]:
            self.homes.drop_copies(blocks[-1])
            rows = self.table.rows_of_block(blocks[-1], tail_tokens)
            records, _, missing = self.reader.collect(rows)
            if missing.any():
                raise TransferError(
                    f"sequence {name!r}: {np.count_nonzero(missing)} rows of its tail are missing"
                )
            self.make_room(len(rows), 0)
            self.tiers.write_new(records)
            self.homes.release_home(blocks[-1])
        for block in blocks:
            self.homes.leaving.pop(block, None)
        sequence.state = SequenceState.RUNNING

    def fork(self, name: str, new_name: str, tokens: int) -> None:
        """Start a sequence with the first tokens of another: full blocks shared, the rest copied."""
        source = self.sequences.get(name)
        self.sequences.check_new(new_name)
        if not 0 <= tokens <= source.tokens:
            raise ValueError(f"tokens is {tokens}; allowed: 0 to {source.tokens}, the length of {name!r}")
        shared, rest = divmod(tokens, self.table.block_tokens)
        blocks = source.blocks[:shared].tolist()
        if rest:
            self.make_room(rest * self.table.streams, 1)
            rows = self.table.rows_of_block(int(source.blocks[shared]), rest)
            records, _, missing = self.reader.collect(rows)
            if missing.any():
                raise TransferError(
                    f"sequence {name!r}: {np.count_nonzero(missing)} rows to copy are missing"
                )
            self.make_room(len(rows), 1)
            blocks.append(self.homes.take_block())
            copies = self.table.rows_of_block(blocks[-1], rest)
            self.tiers.write_new(
                self.tiers.codec.readdress(records, copies, self.table.generation_of(copies))
            )
        for block in blocks[:shared]:
            self.homes.reference(block)
        self.sequences.add(new_name, source.keys[:shared], blocks).tokens = tokens

    def free(self, name: str, *, keep: bool) -> None:
        """Let go of a sequence in any state."""
        sequence = self.sequences.get(name)
        self.let_go(sequence)
        for block in sequence.blocks.tolist():
            self.homes.dereference(block, keep=keep)
        self.sequences.remove(name)
        self.engine.pump()

    def let_go(self, sequence: SequenceRecord) -> None:
        """Stop its moves and release its pins."""
        moves, sequence.moves = sequence.moves, {}
        for move in moves:
            self.engine.cancel(move)
        self.tiers.pin(sequence.pinned, -1)
        sequence.pinned = sequence.pinned[:0]

    def pin(self, sequence: SequenceRecord, rows: RowIndex) -> RowIndex:
        """Keep the copies of rows in row tiers until they are unpinned; returns those that have one."""
        rows = np.unique(rows)
        pinned = rows[self.table.place_of(rows) >= 0]
        new = np.setdiff1d(pinned, sequence.pinned, assume_unique=True)
        self.tiers.pin(new, 1)
        sequence.pinned = np.union1d(sequence.pinned, new)
        return pinned

    def unpin(self, sequence: SequenceRecord, rows: RowIndex) -> None:
        """Take back pins; rows without one are passed over."""
        gone = np.intersect1d(sequence.pinned, rows)
        self.tiers.pin(gone, -1)
        sequence.pinned = np.setdiff1d(sequence.pinned, gone, assume_unique=True)

    def make_room(self, rows: int, blocks: int) -> None:
        """Wait, if need be, until rows can be written: full blocks are stored, moves end or give way.

        Raises CapacityError if that is not enough, or there are too few block numbers.
        """
        if blocks > self.homes.available_blocks:
            raise CapacityError(f"{blocks} blocks are needed; {self.homes.available_blocks} can be given")
        if self.tiers.room_rows < rows:
            start_ps = self.engine.clock.now_ps
            committed = -1
            while self.tiers.room_rows < rows and committed < self.engine.committed_moves:
                committed = self.engine.committed_moves  # another round only if this one brings something
                self.homes.store_all()
                for move in self.engine.under_way():
                    if self.tiers.room_rows < rows:
                        self.engine.wait([move])
            if self.tiers.room_rows < rows:  # copies that wait to be moved give way
                for name in self.sequences.names():
                    for move in tuple(self.sequences.get(name).moves):
                        self.engine.give_up(move)
            self.tiers.metrics.append_wait_ps += self.engine.clock.now_ps - start_ps
        if self.tiers.room_rows < rows:
            raise CapacityError(f"{rows} rows are to be written; there is room for {self.tiers.room_rows}")

    def _append(self, sequence: SequenceRecord, keys: Float16, values: Float16) -> None:
        count = keys.shape[1]
        new = [self.homes.take_block() for _ in range(self._new_blocks(sequence, count))]
        sequence.blocks = np.concatenate([sequence.blocks, np.array(new, np.int64)])
        streams = np.arange(self.table.streams)[:, None]
        rows: RowIndex = self.table.rows(
            sequence.blocks, streams, np.arange(sequence.tokens, sequence.tokens + count)
        ).reshape(-1)
        shape = (len(rows), self.tiers.codec.head_dim)
        self.tiers.write_new(
            self.tiers.codec.make(
                rows, self.table.generation_of(rows), keys.reshape(shape), values.reshape(shape)
            )
        )
        first = sequence.tokens // self.table.block_tokens
        sequence.tokens += count
        self.tiers.metrics.appended_rows += len(rows)
        for index in range(first, sequence.tokens // self.table.block_tokens):
            if index < len(sequence.keys):
                self.homes.prefixes.enter(sequence.keys[index], int(sequence.blocks[index]))
            self.homes.full(int(sequence.blocks[index]))

    def _new_blocks(self, sequence: SequenceRecord, count: int) -> int:
        return -(-(sequence.tokens + count) // self.table.block_tokens) - len(sequence.blocks)

    def _check_append(self, name: str, keys: Float16, values: Float16) -> Rows:
        self.sequences.get(name, SequenceState.RUNNING)
        shape = (self.table.streams, keys.shape[1] if keys.ndim > 1 else 0)
        for what, rows in (("keys", keys), ("values", values)):
            self.tiers.codec.check(rows, f"{what} of {name!r}", shape)
        return keys, values
