"""A prefetch the caller can ask, wait for and cancel."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np

from nearkv.kvcache.block_table import ARRIVING
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.moves import Move, MoveState
from nearkv.kvcache.rows import RowIndex
from nearkv.kvcache.tier_set import TierSet


class PrefetchState(Enum):
    """REGISTERED and QUERIED pass; the others are final."""

    REGISTERED = "registered"  # asked for, not looked up
    QUERIED = "queried"  # looked up, rows on their way
    MISSED = "missed"  # no row is in a row tier
    PARTIAL = "partial"  # some are
    COMPLETE = "complete"  # all are
    TIMED_OUT = "timed_out"  # the deadline passed before all were
    CANCELLED = "cancelled"


class Prefetch:
    """Rows to be brought up to a row tier.

    It holds no slot or pin of its own, and ends as soon as its sequence does not run.

    Args:
        tiers: the tiers.
        engine: carries the moves.
        rows: each named once.
        bring: starts the moves.
        is_running: whether the sequence still runs.

    Attributes:
        waited_ps: time spent in `wait`.
        loaded_rows: rows found in a row tier when it ended, of `rows`.

    """

    def __init__(
        self,
        tiers: TierSet,
        engine: MigrationEngine,
        rows: RowIndex,
        bring: Callable[[], tuple[Move, ...]],
        is_running: Callable[[], bool],
    ) -> None:
        self.rows = rows
        self.waited_ps = 0
        self.loaded_rows = 0
        self._tiers, self._engine, self._bring, self._is_running = tiers, engine, bring, is_running
        self._moves: tuple[Move, ...] = ()
        self._state = PrefetchState.REGISTERED

    @property
    def state(self) -> PrefetchState:
        """Where it is now."""
        if self._state in (PrefetchState.REGISTERED, PrefetchState.QUERIED) and not self._is_running():
            self._stop()
        elif self._state is PrefetchState.QUERIED and not self._under_way():
            self._finish()
        return self._state

    def query(self) -> PrefetchState:
        """Look the rows up and start what is missing; once only."""
        if self.state is PrefetchState.REGISTERED:
            self._state = PrefetchState.QUERIED
            self._moves = self._bring()
        return self.state

    def wait(self) -> PrefetchState:
        """Run the clock until it ends: at the latest at the deadline of its moves."""
        start_ps = self._engine.clock.now_ps
        self.query()
        # Own moves and those of others that bring some of the rows: all have deadlines.
        while self.state is PrefetchState.QUERIED and self._engine.clock.run_next():
            pass
        self.waited_ps += self._engine.clock.now_ps - start_ps
        return self._state

    def cancel(self) -> PrefetchState:
        """Stop its moves, unless it has ended. Rows that have arrived stay."""
        if self.state in (PrefetchState.REGISTERED, PrefetchState.QUERIED):
            self._stop()
        return self._state

    def _stop(self) -> None:
        self._state = PrefetchState.CANCELLED
        for move in self._moves:
            self._engine.cancel(move)
        if self._is_running():
            self._count()

    def _under_way(self) -> bool:
        moving = not all(move.state.final for move in self._moves)
        return moving or bool((self._tiers.table.place_of(self.rows) == ARRIVING).any())

    def _count(self) -> None:
        self.loaded_rows = int(np.count_nonzero(self._tiers.table.place_of(self.rows) >= 0))

    def _finish(self) -> None:
        self._count()
        if self.loaded_rows == len(self.rows):
            self._state = PrefetchState.COMPLETE
        elif any(move.state is MoveState.TIMED_OUT for move in self._moves):
            self._state = PrefetchState.TIMED_OUT
        elif any(move.state is MoveState.CANCELLED for move in self._moves):
            self._state = PrefetchState.CANCELLED
        else:
            self._state = PrefetchState.PARTIAL if self.loaded_rows else PrefetchState.MISSED
