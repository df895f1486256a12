"""Putting copies where a policy wants them: differences only, drops before moves, down before up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.kvcache.block_table import NOWHERE, tier_of
from nearkv.kvcache.jobs import PromoteJob, ShiftJob
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.moves import Move
from nearkv.kvcache.reader import RowReader
from nearkv.kvcache.rows import RowIndex
from nearkv.kvcache.sequences import SequenceRecord
from nearkv.kvcache.tier_set import TierSet
from nearkv.kvcache.tiers import SlotState

Wanted = NDArray[np.int8]

COLD = -1  # no copy in a row tier
KEEP = -2  # as it is


@dataclass(frozen=True)
class Placement:
    """What a placement set in motion, in rows.

    Attributes:
        dropped_rows: copies given up. Nothing moves: the home copy was committed before.
        kept_rows: copies that were to go but are the only ones, pinned or moving: they stay.
        reused_rows: promoted at once from rows fetched in this step.
        promoting_rows: on their way up from a block tier.
        shifting_rows: on their way from one row tier to another.
        unavailable_rows: wanted in a row tier, but without any copy.
        moves: moves under way, whose states tell the rest.

    """

    dropped_rows: int
    kept_rows: int
    reused_rows: int
    promoting_rows: int
    shifting_rows: int
    unavailable_rows: int
    moves: tuple[Move, ...]


class Placer:
    """Turns wanted tiers into moves.

    Args:
        tiers: the tiers.
        engine: carries the moves.
        reader: knows what was fetched in this step.
        batch_rows: most rows of a move.

    """

    def __init__(self, tiers: TierSet, engine: MigrationEngine, reader: RowReader, batch_rows: int) -> None:
        self.tiers, self.engine, self.reader, self._batch_rows = tiers, engine, reader, batch_rows

    def place(self, sequence: SequenceRecord, wanted: Wanted, timeout_ps: int) -> Placement:
        """Make the copies of a sequence's rows those wanted: int8 [streams, tokens], number of the row tier,
        COLD or KEEP.

        Raises ValueError for another shape or dtype, or a tier that does not exist.
        """
        grid = self._grid(sequence, wanted)
        blocks, place = sequence.blocks, self.tiers.table.place[sequence.blocks]
        differs = (grid != KEEP) & (grid != tier_of(place))
        block, stream, offset = np.nonzero(differs)
        rows = (blocks[block] * grid.shape[1] + stream) * grid.shape[2] + offset
        return self._place(sequence, rows, grid[differs], timeout_ps)

    def bring(self, sequence: SequenceRecord, rows: RowIndex, tier: int, timeout_ps: int) -> tuple[Move, ...]:
        """Bring rows, each named once, that have only a home copy up to a row tier."""
        wanted = np.full(len(rows), tier, np.int8)
        cold = self.tiers.table.place_of(rows) == NOWHERE
        return self._place(sequence, rows[cold], wanted[cold], timeout_ps).moves

    def tier_numbers(self, sequence: SequenceRecord) -> Wanted:
        """Row tier of every row's copy, int8 [streams, tokens]; COLD where there is none."""
        number = np.maximum(tier_of(self.tiers.table.place[sequence.blocks]), COLD).astype(np.int8)
        grid: Wanted = number.transpose(1, 0, 2).reshape(self.tiers.table.streams, -1)
        return grid[:, : sequence.tokens]

    def _grid(self, sequence: SequenceRecord, wanted: Wanted) -> Wanted:
        """`wanted` in the table's order, int8 [blocks, streams, block_tokens]."""
        table, tiers = self.tiers.table, len(self.tiers.row_tiers)
        shape = (table.streams, sequence.tokens)
        if wanted.shape != shape or wanted.dtype != np.int8:
            raise ValueError(
                f"wanted is {wanted.dtype} with shape {wanted.shape}; allowed: int8 with {shape}"
            )
        if wanted.size and not KEEP <= (low := wanted.min()) <= (high := wanted.max()) < tiers:
            raise ValueError(f"wanted holds {low} to {high}; allowed: {KEEP} to {tiers - 1}")
        count = len(sequence.blocks)
        whole = np.full((table.streams, count * table.block_tokens), KEEP, np.int8)
        whole[:, : sequence.tokens] = wanted
        return whole.reshape(table.streams, count, table.block_tokens).transpose(1, 0, 2)

    def _place(self, sequence: SequenceRecord, rows: RowIndex, wanted: Wanted, timeout_ps: int) -> Placement:
        tiers = self.tiers
        place = tiers.table.place_of(rows)
        has_copy, free = place >= 0, ~tiers.is_marked(rows, SlotState.MOVING)
        leaving = rows[has_copy & (wanted == COLD)]
        dropped = tiers.drop_copies(leaving)
        tiers.metrics.dropped_rows += dropped
        moves: list[Move] = []
        shifting = 0
        for source in range(len(tiers.row_tiers)):
            for target in range(len(tiers.row_tiers))[::-1]:  # down before up
                if source != target:
                    part = rows[has_copy & free & (tier_of(place) == source) & (wanted == target)]
                    shifting += len(part)
                    moves += self._submit(part, source, target, timeout_ps)
        upward = (place == NOWHERE) & (wanted >= 0)
        at_home = upward & tiers.has_home(rows)
        reused = promoting = 0
        for target in range(len(tiers.row_tiers)):
            part = rows[at_home & (wanted == target)]
            reused += self._reuse(part, target)
            part = part[tiers.table.place_of(part) == NOWHERE]
            promoting += len(part)
            for home, here in tiers.by_home(part):
                moves += [
                    self.engine.submit(PromoteJob(tiers, home, batch, target), timeout_ps)
                    for batch in self._batches(here, target, self._batch_rows, down=False)
                ]
        sequence.moves.update(dict.fromkeys(moves))
        self.engine.pump()  # dropped copies left slots for moves that were waiting
        return Placement(
            dropped,
            len(leaving) - dropped,
            reused,
            promoting,
            shifting,
            int(np.count_nonzero(upward & ~at_home)),
            tuple(moves),
        )

    def _reuse(self, rows: RowIndex, target: int) -> int:
        known = self.reader.fetched(rows)
        return self.tiers.write_copies(known[self.tiers.good(known, known.rows)], target)

    def _submit(self, rows: RowIndex, source: int, target: int, timeout_ps: int) -> list[Move]:
        # Two full tiers swap through their reserves: what does not fit now goes in pieces of that size.
        reserve_rows = min(tier.reserve_rows for tier in self.tiers.row_tiers)
        piece_rows = min(self._batch_rows, max(reserve_rows, 1))
        return [
            self.engine.submit(ShiftJob(self.tiers, batch, source, target), timeout_ps)
            for batch in self._batches(rows, target, piece_rows, down=target > source)
        ]

    def _batches(self, rows: RowIndex, target: int, piece_rows: int, *, down: bool) -> Iterator[RowIndex]:
        """What fits now in moves as large as may be, the rest in pieces."""
        tier = self.tiers.row_tiers[target]
        room_rows = tier.free - (0 if down else tier.reserve_rows)
        start = 0
        while start < len(rows):
            count = min(self._batch_rows, room_rows) if room_rows > 0 else piece_rows
            yield rows[start : start + count]
            start, room_rows = start + count, room_rows - count
