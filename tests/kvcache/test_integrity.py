"""No byte that attention reads is another's, whatever is interleaved, fails or comes late."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.kvcache.mover import Leg, Outcome
from nearkv.kvcache.placement import COLD, KEEP
from nearkv.kvcache.prefixes import prefix_keys
from nearkv.kvcache.rows import RowFormat
from nearkv_sim.golden.migrate_rows import expand_rows, quantise_rows


def test_a1_interleaved_sequences_under_random_completion(rig_of):
    """64 sequences of 32 tokens in 2 streams, a hot tier for an eighth of the rows, 300 decode steps."""
    rig = rig_of(hot_rows=64 * 32 * 2 // 8, cold_blocks=400, seed=1)
    rng = np.random.default_rng(1)
    names = [f"s{i}" for i in range(64)]
    for name in names:
        rig.start(name, int(rng.integers(1, 9)))
    for _ in range(300):
        batch = rng.choice(names, 4, replace=False).tolist()
        for name in batch:
            rig.cache.place(name, rng.choice([0, COLD, KEEP], (2, rig.cache.tokens(name))).astype(np.int8))
        rig.cache.clock.advance(int(rng.integers(0, 20_000)))
        rig.step(*batch)
        for name in batch:
            tokens = rng.integers(0, rig.cache.tokens(name), 8)
            assert not rig.check(name, rng.integers(0, 2, 8), tokens).missing.any()
    for name in names:
        assert not rig.check(name).missing.any()
    moved = rig.cache.metrics
    assert min(moved.promoted_rows, moved.loaded_rows, moved.evicted_rows, moved.deferred_rows) > 0
    assert moved.bad_rows == moved.missing_rows == 0


def history(rig) -> list[object]:
    """Some steps under pressure, and everything that could differ from one run to the next."""
    rng = np.random.default_rng(7)
    names = [f"s{i}" for i in range(6)]
    seen: list[object] = []
    for name in names:
        rig.start(name, 6)
    for _ in range(40):
        rig.step(name := rng.choice(names), count=2)
        rig.cache.place(name, rng.choice([0, 1, COLD, KEEP], (2, rig.cache.tokens(name))).astype(np.int8))
        rig.check(name)
        if rng.random() < 0.2:
            rig.cache.preempt(name)
            rig.cache.resume(name)
        seen += [rig.clock.now_ps, rig.cache.occupancy()]
    return [*seen, rig.cache.metrics]


def test_a_run_repeats_to_the_picosecond(rig_of):
    runs = [history(rig_of(hot_rows=(48, 64), reserve_rows=4, seed=7)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != history(rig_of(hot_rows=(48, 64), reserve_rows=4, seed=8))


def test_a4_long_sessions_return_from_the_drive_among_short_ones(rig_of):
    rig = rig_of(hot_rows=96, cold_blocks=64, seed=4)
    rng = np.random.default_rng(4)
    long_names = [f"long{i}" for i in range(8)]
    for name in long_names:
        rig.start(name, 30)
        rig.cache.preempt(name)
    for round_number in range(40):
        rig.start(short := f"short{round_number}", 9)
        name = rng.choice(long_names)
        rig.cache.resume(name)
        assert not rig.check(name).missing.any()
        assert not rig.check(short).missing.any()
        rig.cache.preempt(name)
        rig.cache.cancel(short)
    assert rig.cache.metrics.loaded_rows > 0


@pytest.mark.parametrize("what", ["another row", "an older generation", "another model", "a flipped bit"])
def test_a4_identity_is_checked_on_load_not_only_size(rig_of, what):
    rig = rig_of()
    rig.start("a", 16)
    rig.idle()
    rig.cache.place("a", rig.wanted("a", COLD))
    records = rig.cache._tiers.block_tiers[0].records
    if what == "another row":  # a whole record with a header of its own, unharmed
        records.copy_from(np.array([3]), records[np.array([5])])
    elif what == "an older generation":
        old = rig.config.codec.make(
            records.rows[3:4], records.generation[3:4] - 1, *rig.config.codec.rows_of(records.data[3:4])
        )
        records.copy_from(np.array([3]), old)
    elif what == "another model":
        codec = type(rig.config.codec)(rig.config.head_dim, RowFormat.FP16, "another")
        own = records[np.array([3])]
        records.copy_from(np.array([3]), codec.readdress(own, own.rows, own.generation))
    else:
        records.data[3, 2] ^= 1
    found = rig.check("a")
    assert np.flatnonzero(found.missing).tolist() == [3]
    assert rig.recompute == [("a", [0], [3])]
    assert rig.cache.metrics.bad_rows > 0
    assert rig.cache.metrics.loaded_rows == 31


def test_a8_the_scales_come_back_with_their_codes(rig_of):
    """INT8 rows: demoted, their slots used by rows of other scales, promoted again."""
    rig = rig_of(hot_rows=32, row_format=RowFormat.INT8, seed=8)
    rows = {}
    for name, scale in (("a", 1.0), ("b", 300.0)):
        rng = np.random.default_rng(8)
        keys, values = (rng.standard_normal((2, 2, 16, rig.config.head_dim)) * scale).astype(np.float16)
        rig.cache.start(name)
        rig.cache.append(name, keys, values)  # b takes the slots of a
        rows[name] = keys, values
        rig.idle()
    rig.cache.place("b", rig.wanted("b", COLD))
    rig.cache.place("a", rig.wanted("a", 0))
    rig.idle()
    for name in ("a", "b"):
        found = rig.cache.read(name, *rig.everything(name))
        assert found.hot.all() == (name == "a")
        for got, want in zip((found.keys, found.values), rows[name], strict=True):
            codes, scales = quantise_rows(want.reshape(got.shape))
            assert (got == expand_rows(codes, scales)).all()


@pytest.mark.parametrize("leg", Leg)
@pytest.mark.parametrize("outcome", [Outcome.ERROR, None], ids=["fails", "stalls"])
def test_a9_a_failure_in_each_leg_is_a_miss_never_a_load(rig_of, leg, outcome):
    fault = {"on": False}

    def fails(at, source, _target):
        return outcome if fault["on"] and at is leg and source == "cold0" else Outcome.OK

    rig = rig_of(fault=fails)
    rig.start("a", 16)
    rig.idle()
    rig.cache.place("a", rig.wanted("a", COLD))
    fault["on"] = True
    found = rig.check("a")
    assert found.missing.all()
    metrics = rig.cache.metrics
    assert (metrics.loaded_rows, metrics.missing_rows, metrics.moved_bytes["cold0", "hot0"]) == (0, 32, 0)
    if outcome is Outcome.ERROR:
        assert (metrics.leg_failures[leg], metrics.retried_moves, metrics.failed_moves) == (2, 1, 1)
    else:
        assert (metrics.timed_out_moves, metrics.failed_moves) == (1, 0)
        assert metrics.read_wait_ps == rig.config.timeout_ps
    assert len(rig.recompute) == 1
    moves = rig.cache.place("a", rig.wanted("a", 0)).moves
    rig.idle()
    assert metrics.promoted_rows == 0
    assert all(move.state.final for move in moves)
    assert (rig.cache.tier_numbers("a") == COLD).all()
    fault["on"] = False
    assert not rig.check("a").missing.any()
    assert metrics.loaded_rows == 32


@pytest.mark.parametrize("leg", Leg)
def test_a9_one_failure_is_retried_and_loses_nothing(rig_of, leg):
    failures = [Outcome.ERROR]
    rig = rig_of(fault=lambda at, *_: failures.pop() if failures and at is leg else Outcome.OK)
    rig.start("a", 16)
    rig.idle()
    assert rig.cache.metrics.retried_moves == rig.cache.metrics.leg_failures[leg] == 1
    rig.cache.place("a", rig.wanted("a", COLD))
    assert not rig.check("a").missing.any()


def test_a9_a_store_that_fails_leaves_the_only_copy_where_it_is(rig_of):
    fault = {"on": True}
    rig = rig_of(fault=lambda leg, *_: Outcome.ERROR if fault["on"] and leg is Leg.WRITE else Outcome.OK)
    rig.start("a", 8)
    rig.idle()
    placed = rig.cache.place("a", rig.wanted("a", COLD))
    assert (placed.dropped_rows, placed.kept_rows) == (0, 16)
    assert rig.check("a").hot.all()
    fault["on"] = False
    rig.step()  # stores again
    rig.idle()
    assert rig.cache.place("a", rig.wanted("a", COLD)).dropped_rows == 16
    assert not rig.check("a").missing.any()


def test_a_bad_hot_copy_is_replaced_from_home_and_counted(rig_of):
    rig = rig_of()
    rig.start("a", 12)
    rig.idle()
    rig.cache._tiers.row_tiers[0].records.data[:, 0] ^= 1
    found = rig.check("a")
    tail = np.tile(np.arange(12) >= 8, 2)
    assert (found.missing == tail).all()  # the unsealed tail was the only copy
    assert rig.cache.metrics.bad_rows == 24


def test_restored_rows_are_good_in_every_tier(rig_of):
    rig = rig_of()
    rig.start("a", 8)
    rig.idle()
    for tier in (*rig.cache._tiers.row_tiers, *rig.cache._tiers.block_tiers):
        tier.records.data[:] ^= 1
    assert rig.check("a").missing.all()
    keys, values = rig.rows("a", 0, 8)
    streams, tokens = rig.everything("a")
    rig.cache.restore("a", streams, tokens, keys.reshape(16, -1), values.reshape(16, -1))
    assert rig.cache.place("a", rig.wanted("a", COLD)).dropped_rows == 0  # given up by the read
    assert not rig.check("a").missing.any()


def test_prefix_keys_stand_for_everything_before_their_end():
    keys = prefix_keys(np.arange(35), 16)
    assert len(keys) == 2
    assert prefix_keys(np.arange(32), 16) == keys
    assert prefix_keys(np.r_[7, np.arange(1, 32)], 16)[1] != keys[1]
    with pytest.raises(ValueError, match="float64"):
        prefix_keys(np.zeros(3), 16)
