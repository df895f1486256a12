"""Preemption: what is written home, what comes back, and that no output changes."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.kvcache.mover import Leg, Outcome
from nearkv.kvcache.placement import COLD
from nearkv.kvcache.sequences import CapacityError, SequenceState, TransferError


def test_c2_a_resume_waits_for_the_stores_of_the_preemption(rig_of):
    rig = rig_of(seed=2)
    rig.start("a", 21)
    rig.cache.preempt("a")
    assert rig.cache.metrics.stored_blocks == 0
    assert rig.cache.engine.active == 3
    rig.cache.resume("a")
    assert rig.cache.metrics.stored_blocks == 3
    assert rig.cache.engine.active == 0
    assert not rig.check("a").missing.any()
    rig.step("a", count=4)
    rig.idle()
    assert rig.cache.metrics.stored_blocks == 4
    rig.cache.place("a", rig.wanted("a", COLD))
    assert not rig.check("a").missing.any()


def test_a_preempted_sequence_leaves_the_row_tiers_and_can_only_be_resumed_forked_or_ended(rig_of):
    rig = rig_of()
    rig.start("a", 20)
    rig.cache.pin("a", 0, [1, 2])
    rig.cache.preempt("a")
    rig.idle()
    held = rig.cache.occupancy()
    assert (held["hot0"].free, held["cold0"].pinned) == (held["hot0"].total, 3)
    assert rig.cache.state("a") is SequenceState.PREEMPTED
    for action in (
        lambda: rig.step("a"),
        lambda: rig.check("a"),
        lambda: rig.cache.place("a", rig.wanted("a", 0)),
        lambda: rig.cache.prefetch("a", 0, 0),
        lambda: rig.cache.preempt("a"),
    ):
        with pytest.raises(ValueError, match="sequence 'a' is preempted; allowed: running"):
            action()
    rig.cache.fork("a", "b", 20)
    rig.requests["b"] = rig.requests["a"]
    assert not rig.check("b").missing.any()
    with pytest.raises(ValueError, match="sequence 'b' is running; allowed: preempted"):
        rig.cache.resume("b")


def test_a_resume_without_room_changes_nothing(rig_of):
    rig = rig_of(hot_rows=16)
    rig.start("a", 4)
    rig.cache.preempt("a")
    rig.idle()
    rig.start("b", 7)
    with pytest.raises(CapacityError, match="8 rows are to be written; there is room for 2"):
        rig.cache.resume("a")
    assert rig.cache.state("a") is SequenceState.PREEMPTED
    assert rig.check("b").hot.all()
    rig.cache.cancel("b")
    rig.cache.resume("a")
    assert not rig.check("a").missing.any()


def test_a_resume_whose_reads_fail_changes_nothing(rig_of):
    fault = {"on": False}
    rig = rig_of(
        fault=lambda leg, source, _: (
            Outcome.ERROR if fault["on"] and source == "cold0" and leg is Leg.READ else Outcome.OK
        )
    )
    rig.start("a", 12)
    rig.cache.preempt("a")
    rig.idle()
    fault["on"] = True
    with pytest.raises(TransferError, match="8 rows of its tail are missing"):
        rig.cache.resume("a")
    assert rig.cache.state("a") is SequenceState.PREEMPTED
    fault["on"] = False
    rig.cache.resume("a")
    assert not rig.check("a").missing.any()


def test_a_preemption_whose_store_failed_is_stored_later(rig_of):
    failures = [Outcome.ERROR] * 2
    rig = rig_of(fault=lambda *_: failures.pop() if failures else Outcome.OK)
    rig.start("a", 5)
    rig.cache.preempt("a")
    rig.idle()
    assert rig.pinned()["hot0"] == 10  # still the only copies
    rig.step()
    rig.idle()
    assert rig.pinned() == {"hot0": 0, "cold0": 1}
    rig.cache.resume("a")
    assert not rig.check("a").missing.any()


def test_a_resume_does_not_wait_for_a_home_that_cannot_be_had(rig_of):
    rig = rig_of(cold_blocks=1)
    rig.start("a", 8)
    rig.idle()
    rig.start("b", 5)
    rig.cache.preempt("b")
    rig.clock.advance(10_000)
    start_ps = rig.clock.now_ps
    rig.cache.resume("b")
    assert rig.clock.now_ps == start_ps
    assert rig.check("b").hot.all()


def generate(rig, *, preempting: bool) -> dict[str, list[int]]:
    """Two requests, prompt 34, 35 new tokens; every token is a checksum over all rows before it.

    A request runs only while all its rows are in the row tier and pinned there, as on a GPU that attends to
    its own memory. One that does not fit preempts the other; both take turns.
    """
    outputs: dict[str, list[int]] = {"a": [], "b": []}
    preemptions = 0
    for name in outputs:
        rig.start(name)
        rig.cache.preempt(name)

    def make_room(other: str) -> None:
        nonlocal preemptions
        preemptions += 1
        rig.cache.preempt(other)
        rig.idle()

    def with_room(action, other: str) -> None:
        try:
            action()
        except CapacityError:
            make_room(other)
            action()

    def run(name: str, other: str) -> None:
        if rig.cache.state(name) is SequenceState.PREEMPTED:
            with_room(lambda: rig.cache.resume(name), other)
        count = 1 if rig.cache.tokens(name) else 34
        with_room(lambda: rig.step(name, count=count), other)
        streams, tokens = rig.everything(name)
        rig.cache.prefetch(name, streams, tokens).wait()
        if rig.cache.pin(name, streams, tokens) < 2 * len(tokens):
            make_room(other)
            rig.cache.prefetch(name, streams, tokens).wait()
            assert rig.cache.pin(name, streams, tokens) == 2 * len(tokens)
        found = rig.check(name, streams, tokens)
        assert found.hot.all()
        outputs[name].append(int(found.keys.view(np.uint16).sum(dtype=np.int64)))

    for _ in range(36):
        run("a", "b")
        run("b", "a")
    assert (preemptions > 0) == preempting
    for name in outputs:
        rig.cache.free(name)
    return outputs


def test_c8_preemption_changes_no_output(rig_of):
    """7 blocks of 16 tokens force preemptions, 11 do not; both requests finish with the same output."""
    outputs = {}
    for blocks in (7, 11):
        rig = rig_of(hot_rows=blocks * 32, block_tokens=16, timeout_ps=10**8)
        outputs[blocks] = generate(rig, preempting=blocks == 7)
        assert rig.cache.sequences() == []
    assert outputs[7] == outputs[11]
    assert [len(output) for output in outputs[7].values()] == [36, 36]
