"""The migration engine: moves of records between tiers, asynchronous, in explicit states.

    REGISTERED ─ slots at the target ─► QUEUED ─ staging buffer ─► READING ─ records checked ─► LANDED
                                                                                                  │
    FAILED (twice) · TIMED_OUT (deadline) · CANCELLED ◄── from every state                   COMMITTED

Records are checked one by one before they go on; a move is committed when the target has acknowledged
them. Every move has a deadline, so every wait ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from nearkv.kvcache.clock import Clock
from nearkv.kvcache.metrics import CacheMetrics
from nearkv.kvcache.mover import Leg, Mover, Outcome
from nearkv.kvcache.moves import Move, MoveJob, MoveState
from nearkv.kvcache.rows import Records
from nearkv.kvcache.staging import StagingBuffers


class MigrationEngine:
    """Runs moves over a few staging buffers.

    Args:
        clock: calls the engine back.
        mover: carries the legs.
        staging: buffers, as large as the largest job.
        metrics: counters to raise.

    Attributes:
        committed_moves: moves that ended well.

    """

    def __init__(self, clock: Clock, mover: Mover, staging: StagingBuffers, metrics: CacheMetrics) -> None:
        self.clock, self.mover, self.staging, self.metrics = clock, mover, staging, metrics
        self.committed_moves = 0
        self._registered: dict[str, deque[Move]] = {}
        self._queued: tuple[deque[Move], deque[Move]] = (deque(), deque())  # urgent ones, others
        self._moves: dict[Move, None] = {}  # in order of submission, so that a run can be repeated
        self._pumping = self._again = False

    @property
    def active(self) -> int:
        """Moves that have not ended."""
        return len(self._moves)

    def submit(self, job: MoveJob, timeout_ps: int) -> Move:
        """Register a move; ValueError for a timeout below 1, no rows, or more than a staging buffer holds."""
        if timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        if not 1 <= len(job.rows) <= self.staging.rows:
            raise ValueError(f"a move has {len(job.rows)} rows; allowed: 1 to {self.staging.rows}")
        move = Move(job, self.clock.now_ps + timeout_ps)
        move.deadline = self.clock.at(move.deadline_ps, lambda: self._end(move, MoveState.TIMED_OUT))
        self._moves[move] = None
        # Urgent moves need no slots: nothing they would have to wait for.
        queue = "" if job.urgent else job.target
        self._registered.setdefault(queue, deque()).append(move)
        self.pump()
        if move.state is MoveState.REGISTERED:
            self.metrics.deferred_rows += len(job.rows)
        return move

    def cancel(self, move: Move) -> None:
        """End a move in any state; one that has ended stays as it is."""
        if not move.state.final:
            self._end(move, MoveState.CANCELLED)

    def give_up(self, move: Move) -> None:
        """Cancel a move that still waits for slots: its rows are unfulfilled."""
        if move.state is MoveState.REGISTERED:
            self.metrics.unfulfilled_rows += len(move.job.rows)
            self.cancel(move)

    def wait(self, moves: Iterable[Move]) -> None:
        """Run the clock until the moves have ended, at the latest at their deadlines."""
        for move in moves:
            while not move.state.final:
                if not self.clock.run_next():
                    raise RuntimeError(
                        f"a move is {move.state.value} and no event is due: a defect of this package"
                    )

    def under_way(self) -> tuple[Move, ...]:
        """Moves that have their slots and will end by themselves, oldest first."""
        return tuple(move for move in self._moves if move.state is not MoveState.REGISTERED)

    def run_idle(self) -> None:
        """Run the clock until no move is left."""
        self.wait(tuple(self._moves))

    def pump(self) -> None:
        """Start what can start: called by the engine after every change, by others after freeing slots."""
        self._again = True
        if self._pumping:
            return
        self._pumping = True
        while self._again:
            self._again = False
            self._reserve()
            while self.staging.free and (move := self._next_queued()):
                self._read(move)
        self._pumping = False

    def _reserve(self) -> None:
        # In order of arrival per target: a large move is not starved by small ones.
        for waiting in self._registered.values():
            while waiting and (waiting[0].state.final or waiting[0].job.reserve()):
                move = waiting.popleft()
                if not move.state.final:
                    move.state = MoveState.QUEUED
                    self._queued[not move.job.urgent].append(move)

    def _next_queued(self) -> Move | None:
        for queue in self._queued:
            while queue:
                if not (move := queue.popleft()).state.final:
                    return move
        return None

    def _read(self, move: Move) -> None:
        if move.buffer is None:
            move.buffer = self.staging.take()
        move.state = MoveState.READING
        self._start(move, Leg.READ)

    def _start(self, move: Move, leg: Leg) -> None:
        job = move.job
        nbytes = len(job.rows) * self.staging.record_bytes
        move.leg = self.mover.start(
            leg, job.source, job.target, nbytes, lambda outcome: self._leg_ended(move, leg, outcome)
        )

    def _leg_ended(self, move: Move, leg: Leg, outcome: Outcome) -> None:
        if outcome is not Outcome.OK:
            self.metrics.leg_failures[leg] += 1
            room = outcome is not Outcome.NO_SPACE or move.job.make_room()
            self._retry(move, possible=room)
        elif leg is Leg.READ:
            self._landed(move)
        elif leg is Leg.DMA:
            # The target's bytes change only now: what counts is what the buffer holds at the transfer's end.
            move.job.scatter(self._staged(move))
            self._start(move, Leg.WRITE)
        else:
            self.metrics.moved_bytes[move.job.source, move.job.target] += (
                len(move.job.rows) * self.staging.record_bytes
            )
            self._end(move, MoveState.COMMITTED)

    def _landed(self, move: Move) -> None:
        records = move.job.gather()
        self.staging.fill(self._buffer_of(move), records)
        good = move.job.check(self._staged(move))
        if not good.all():
            self.metrics.bad_rows += int(np.count_nonzero(~good))
            if not move.retried or not good.any() or not move.job.accept(good):
                self._retry(move, possible=True)
                return
            self.staging.fill(self._buffer_of(move), records[good])
        move.state = MoveState.LANDED
        self._start(move, Leg.DMA)

    def _retry(self, move: Move, *, possible: bool) -> None:
        if move.retried or not possible:
            self._end(move, MoveState.FAILED)
            return
        move.retried = True
        self.metrics.retried_moves += 1
        self._read(move)

    def _staged(self, move: Move) -> Records:
        return self.staging.read(self._buffer_of(move), len(move.job.rows))

    @staticmethod
    def _buffer_of(move: Move) -> int:
        if move.buffer is None:
            raise RuntimeError(f"a move is {move.state.value} without a staging buffer")
        return move.buffer

    def _end(self, move: Move, state: MoveState) -> None:
        rows, waited = len(move.job.rows), move.state is MoveState.REGISTERED
        move.state = state
        for event in (move.leg, move.deadline):
            if event is not None:
                event.cancel()
        if move.buffer is not None:
            self.staging.release(move.buffer)
            move.buffer = None
        del self._moves[move]
        if state is MoveState.COMMITTED:
            self.committed_moves += 1
        elif state is MoveState.TIMED_OUT:
            self.metrics.timed_out_moves += 1
            self.metrics.unfulfilled_rows += rows if waited else 0
        elif state is MoveState.FAILED:
            self.metrics.failed_moves += 1
        elif state is MoveState.CANCELLED:
            self.metrics.cancelled_moves += 1
        move.job.settle(state)
        self.pump()
