"""The engine: states, staging, deadlines, retries, cancellation, pace."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from nearkv.kvcache.clock import SimulatedClock
from nearkv.kvcache.metrics import CacheMetrics
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.mover import DescribedLinks, Leg, Outcome, PathTimes, SimulatedMover
from nearkv.kvcache.moves import MoveJob, MoveState
from nearkv.kvcache.placement import COLD
from nearkv.kvcache.rows import empty_records
from nearkv.kvcache.staging import StagingBuffers

RECORD_BYTES = 16
LINKS = DescribedLinks(PathTimes(100, 1e12, 1_000, 1e11))  # 1 ps and 10 ps a byte: the link is slower


@dataclass
class FillJob(MoveJob):
    """Records full of one number, to a list of what arrived."""

    number: int
    arrived: list[int]
    rows: np.ndarray = field(default_factory=lambda: np.arange(4))
    source: str = "ssd"
    target: str = "dram"
    room: bool = True
    settled: MoveState | None = None

    def reserve(self):
        return self.room

    def gather(self):
        records = empty_records(len(self.rows), RECORD_BYTES)
        records.data[:] = self.number
        return records

    def check(self, records):
        return (records.data == self.number).all(axis=1)

    def accept(self, good):
        return bool(good.all())

    def scatter(self, records):
        assert (records.data == records.data[0, 0]).all()
        self.arrived.append(int(records.data[0, 0]))

    def make_room(self):
        return False

    def settle(self, state):
        assert self.settled is None
        self.settled = state


class StalledMover(SimulatedMover):
    """Legs of one kind never end."""

    stalled: Leg | None = None

    def start(self, leg, source, target, nbytes, done):
        return None if leg is self.stalled else super().start(leg, source, target, nbytes, done)


def make_engine(buffers: int = 2, links=LINKS, link_cap: float = 1.0) -> MigrationEngine:
    clock = SimulatedClock()
    staging = StagingBuffers(buffers, 4, RECORD_BYTES)
    return MigrationEngine(clock, StalledMover(clock, links, link_cap), staging, CacheMetrics())


def test_a_move_passes_its_states_in_order_and_takes_the_legs_times():
    engine, arrived, states = make_engine(), [], []
    move = engine.submit(job := FillJob(1, arrived), 10**6)
    states.append(move.state)
    while not move.state.final:
        engine.clock.run_next()
        states.append(move.state)
    assert states == [MoveState.READING, MoveState.LANDED, MoveState.LANDED, MoveState.COMMITTED]
    assert (arrived, job.settled) == ([1], MoveState.COMMITTED)
    assert engine.clock.now_ps == (100 + 64) + (1_000 + 640)
    assert engine.metrics.moved_bytes["ssd", "dram"] == 64


def test_a3_no_staging_buffer_is_overwritten_before_its_transfer_is_complete():
    """Two batches back to back over two buffers and a link ten times slower than the drive."""
    engine, arrived = make_engine(buffers=2), []
    batches = [[engine.submit(FillJob(8 * b + i, arrived), 10**9) for i in range(8)] for b in range(2)]
    busiest = 0
    while engine.active:
        engine.clock.run_next()
        busiest = max(busiest, engine.staging.count - engine.staging.free)
    assert arrived == list(range(16))  # each move delivered its own bytes
    assert busiest == 2
    assert all(move.state is MoveState.COMMITTED for batch in batches for move in batch)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a3_the_bytes_that_count_are_those_of_the_buffer_at_the_transfers_end(steps):
    """The test above can fail: a buffer overwritten during the transfer delivers what overwrote it."""
    engine, arrived = make_engine(buffers=1), []
    engine.submit(FillJob(1, arrived), 10**9)
    for _ in range(steps):
        engine.clock.run_next()
    engine.staging.fill(0, FillJob(9, []).gather())
    engine.run_idle()
    assert arrived == ([1] if steps in (0, 2) else [9])


def test_reading_overlaps_the_link():
    """Eight moves take the time of the slower leg, not the sum of both."""
    links = DescribedLinks(PathTimes(0, 1e12, 0, 1e12))
    engine = make_engine(links=links)
    engine.wait([engine.submit(FillJob(1, []), 10**9) for _ in range(8)])
    assert engine.clock.now_ps == (8 + 1) * 64


@pytest.mark.parametrize("link_cap", [1.0, 0.7, 0.5])
def test_a_capped_link_is_busy_for_that_share_of_the_time(link_cap):
    engine = make_engine(link_cap=link_cap)
    engine.wait([engine.submit(FillJob(1, []), 10**9) for _ in range(50)])
    busy_ps = 50 * (1_000 + 640)
    assert busy_ps / engine.clock.now_ps == pytest.approx(link_cap, rel=0.03)


@pytest.mark.parametrize("leg", Leg)
def test_a_leg_that_never_ends_is_released_at_the_deadline(leg):
    engine, arrived = make_engine(buffers=1), []
    engine.mover.stalled = leg
    move = engine.submit(FillJob(1, arrived), 5_000)
    waiting = engine.submit(FillJob(2, arrived), 9_000)
    engine.wait([move])
    assert (move.state, engine.clock.now_ps) == (MoveState.TIMED_OUT, 5_000)
    engine.mover.stalled = None
    engine.wait([waiting])
    assert (
        waiting.state is (MoveState.TIMED_OUT if leg is Leg.READ else MoveState.COMMITTED)
        or leg is not Leg.READ
    )
    assert engine.staging.free == 1


def test_no_room_until_the_deadline_is_unfulfilled_and_counted_apart():
    engine = make_engine()
    job = FillJob(1, [], room=False)
    late = engine.submit(FillJob(2, [], room=False), 50_000)
    move = engine.submit(job, 5_000)
    assert engine.metrics.deferred_rows == 8
    engine.wait([move])
    assert (move.state, engine.metrics.unfulfilled_rows) == (MoveState.TIMED_OUT, 4)
    late.job.room = True
    engine.pump()
    engine.wait([late])
    assert late.state is MoveState.COMMITTED
    assert engine.metrics.unfulfilled_rows == 4


@pytest.mark.parametrize("state", [state for state in MoveState if not state.final])
def test_c3_cancel_in_every_state_leaves_the_others_alone(state):
    engine, arrived = make_engine(buffers=1), []
    other = engine.submit(FillJob(7, arrived), 10**6)
    move = engine.submit(FillJob(1, arrived, room=state is not MoveState.REGISTERED), 10**6)
    while move.state is not state:
        engine.clock.run_next()
    engine.cancel(move)
    assert move.job.settled is move.state is MoveState.CANCELLED
    engine.cancel(move)
    last = engine.submit(FillJob(8, arrived), 10**6)
    engine.run_idle()
    assert arrived == [7, 8]
    assert other.state is last.state is MoveState.COMMITTED
    assert (engine.staging.free, engine.active, engine.metrics.cancelled_moves) == (1, 0, 1)


def test_c6_moves_complete_when_only_the_idle_loop_runs(rig_of):
    rig = rig_of(hot_rows=96, seed=6)
    for name in ("a", "b", "c"):
        rig.start(name, 16)
    rig.idle()
    for name in ("a", "b", "c"):
        rig.cache.place(name, rig.wanted(name, COLD))
        rig.cache.place(name, rig.wanted(name, 0))
    assert rig.cache.engine.active > 0
    assert rig.pinned()["hot0"] > 0
    rig.idle()
    assert rig.cache.engine.active == 0
    assert rig.pinned() == {"hot0": 0, "cold0": 6}  # no move holds a slot; blocks of live sequences are home
    for name in ("a", "b", "c"):
        assert rig.check(name).hot.all()
        rig.cache.cancel(name)
    assert rig.pinned() == {"hot0": 0, "cold0": 0}


def test_bad_arguments_are_refused():
    engine = make_engine()
    with pytest.raises(ValueError, match="timeout_ps is 0; allowed: from 1"):
        engine.submit(FillJob(1, []), 0)
    with pytest.raises(ValueError, match="a move has 5 rows; allowed: 1 to 4"):
        engine.submit(FillJob(1, [], rows=np.arange(5)), 1)
    with pytest.raises(ValueError, match="staging is 0 buffers of 4 rows"):
        StagingBuffers(0, 4, 16)
    with pytest.raises(ValueError, match=r"link_cap is 1\.5; allowed: 0\.001 to 1"):
        SimulatedMover(SimulatedClock(), LINKS, 1.5)
    assert engine.active == 0


def test_a_refused_write_is_retried_only_if_room_can_be_made(rig_of):
    outcomes = [Outcome.NO_SPACE, Outcome.NO_SPACE]
    rig = rig_of(fault=lambda leg, *_: outcomes.pop() if outcomes and leg is Leg.WRITE else Outcome.OK)
    rig.start("a", 8)
    rig.idle()  # nothing is kept: no room to be made, so no second try
    assert rig.cache.metrics.failed_moves == 1
    assert rig.cache.metrics.retried_moves == 0
    assert rig.check("a").hot.all()
