"""Sequences: start, append, fork, preempt, resume, cancel, free."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.kvcache.placement import COLD, KEEP


def test_a_sequence_grows_and_reads_back_what_was_appended(rig_of):
    rig = rig_of()
    rig.start("a", 3)
    for count in (1, 4, 8, 17):
        rig.step("a", count=count)
    assert rig.cache.tokens("a") == 33
    assert rig.cache.sequences() == ["a"]
    assert rig.check("a").hot.all()
    assert not rig.check("a", 1, np.array([5, 5, 32])).missing.any()  # rows may repeat


@pytest.mark.parametrize("when", ["before the first step", "appended", "stored", "promoting", "preempted"])
def test_c3_cancel_at_any_time_leaves_others_alone_and_releases_everything(rig_of, when):
    rig = rig_of(seed=3)
    rig.start("other", 12)
    rig.start("a")
    if when != "before the first step":
        rig.append("a", 19)
        rig.cache.fork("a", "child", 10)
        rig.requests["child"] = rig.requests["a"]
    if when in ("stored", "promoting"):
        rig.idle()
    if when == "promoting":
        rig.cache.place("a", rig.wanted("a", COLD))
        rig.cache.place("a", rig.wanted("a", 0))
        rig.cache.place("other", rig.wanted("other", KEEP))
        rig.cache.pin("a", [0, 1], 18)
    if when == "preempted":
        rig.cache.preempt("a")
    rig.cache.cancel("a")
    assert "a" not in rig.cache.sequences()
    for name in rig.cache.sequences():
        assert not rig.check(name).missing.any()
        rig.cache.cancel(name)
    rig.idle()
    for tier in rig.cache.occupancy().values():
        assert tier.free == tier.total
    assert rig.cache.engine.active == 0


def test_a_fork_shares_full_blocks_and_copies_the_rest(rig_of):
    rig = rig_of()
    rig.start("a", 21)
    rig.idle()
    before = rig.cache.occupancy()
    rig.cache.fork("a", "b", 19)
    rig.requests["b"] = rig.requests["a"]
    after = rig.cache.occupancy()
    assert before["hot0"].free - after["hot0"].free == 3 * 2
    assert after["cold0"] == before["cold0"]
    rig.requests["b"] = rig.requests["a"]
    assert not rig.check("b").missing.any()
    rig.step("a", count=3)
    keys, values = rig.rows("other", 19, 2)
    rig.cache.append("b", keys, values)
    rig.check("b", [[0], [1]], np.arange(19))
    rig.check("b", [[0], [1]], np.array([19, 20]), request=rig.requests["other"])
    rig.cache.cancel("a")
    assert not rig.check("b", [[0], [1]], np.arange(19)).missing.any()


@pytest.mark.parametrize(("tokens", "shared"), [(0, 0), (8, 1), (16, 2)])
def test_a_fork_at_a_blocks_end_copies_nothing(rig_of, tokens, shared):
    rig = rig_of()
    rig.start("a", 20)
    rig.cache.fork("a", "b", tokens)
    rig.requests["b"] = rig.requests["a"]
    assert rig.cache.metrics.appended_rows == 40
    assert rig.cache.tokens("b") == 8 * shared
    rig.step("b", count=2)
    assert not rig.check("b").missing.any()


def test_a_prefix_is_found_again_after_its_sequence_has_ended(rig_of):
    rig = rig_of()
    keys = ["k0", "k1", "k2"]
    rig.start("a", 28, keys=keys)
    rig.cache.free("a")
    rig.idle()
    assert rig.cache.occupancy()["cold0"].evictable == 3
    assert rig.cache.occupancy()["hot0"].free == rig.cache.occupancy()["hot0"].total
    assert rig.start("b", keys=["k0", "k1", "else"]) == 16
    rig.requests["b"] = rig.requests["a"]
    assert rig.cache.occupancy()["cold0"].evictable == 1
    assert not rig.check("b").missing.any()
    assert rig.start("c", keys=["else", "k1"]) == 0  # not a prefix


def test_a_live_prefix_is_shared_before_it_is_stored(rig_of):
    rig = rig_of(seed=5)
    rig.start("a", 16, keys=["k0", "k1"])
    assert rig.start("b", keys=["k0", "k1"]) == 16
    rig.requests["b"] = rig.requests["a"]
    rig.cache.cancel("a")
    assert rig.check("b").hot.all()
    rig.idle()
    assert rig.cache.metrics.stored_blocks == 2


def test_bad_calls_quote_the_value_and_what_is_allowed(rig_of):
    rig = rig_of()
    cache = rig.cache
    with pytest.raises(ValueError, match="sequence is 'a'; allowed: none is held"):
        cache.tokens("a")
    rig.start("a", 5)
    cases = [
        (lambda: cache.start("a"), "sequence 'a' is held already"),
        (lambda: cache.tokens("b"), "sequence is 'b'; allowed: a"),
        (lambda: cache.read("a", 2, 0), "streams hold 2; allowed: 0 to 1"),
        (lambda: cache.read("a", 0, [1, 5]), "tokens hold 5; allowed: 0 to 4"),
        (lambda: cache.read("a", 0.0, 1), "streams are float64; allowed: integers"),
        (lambda: cache.fork("a", "b", 6), "tokens is 6; allowed: 0 to 5"),
        (lambda: cache.fork("a", "a", 1), "sequence 'a' is held already"),
        (lambda: cache.place("a", np.zeros((2, 4), np.int8)), r"shape \(2, 4\); allowed: int8 with \(2, 5\)"),
        (lambda: cache.place("a", np.full((2, 5), 1, np.int8)), "wanted holds 1 to 1; allowed: -2 to 0"),
        (lambda: cache.place("a", rig.wanted("a", 0), timeout_ps=0), "timeout_ps is 0"),
        (lambda: cache.prefetch("a", 0, 0, tier=1), "tier is 1; allowed: 0 to 0"),
        (lambda: cache.restore("a", 0, [1, 1], *np.zeros((2, 2, 4), np.float16)), "a row is named twice"),
    ]
    keys, values = rig.rows("a", 5, 1)
    bad = keys.copy()
    bad[0, 0, 0] = np.inf
    cases += [
        (lambda: cache.append("a", bad, values), "keys of 'a' hold Inf or NaN"),
        (lambda: cache.append("a", keys, values[:1]), r"values of 'a' are float16 with shape \(1, 1, 4\)"),
        (lambda: cache.append("a", keys.astype(np.float32), values), "keys of 'a' are float32"),
    ]
    before = cache.occupancy()
    for action, message in cases:
        with pytest.raises(ValueError, match=message):
            action()
    assert (cache.occupancy(), cache.tokens("a"), cache.sequences()) == (before, 5, ["a"])
