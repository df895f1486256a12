"""Full tiers: what is given up, what is refused, what is written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearkv.kvcache.block_table import NOWHERE, BlockTable
from nearkv.kvcache.homes import BlockHomes
from nearkv.kvcache.metrics import CacheMetrics
from nearkv.kvcache.mover import Leg, Outcome
from nearkv.kvcache.placement import COLD
from nearkv.kvcache.prefetch import PrefetchState
from nearkv.kvcache.prefixes import PrefixIndex
from nearkv.kvcache.rows import RowCodec, RowFormat
from nearkv.kvcache.sequences import CapacityError
from nearkv.kvcache.tier_set import TierSet
from nearkv.kvcache.tiers import TierConfig, TierRole

BLOCKS, REQUESTS = 24, 1_000_000


def make_homes(min_seen: int = 1) -> BlockHomes:
    """Blocks of one row; nothing moves in these tests, so there is no engine."""
    metrics, codec = CacheMetrics(), RowCodec(4, RowFormat.FP16, "test")
    row_bytes = codec.record_bytes + 16
    configs = (
        TierConfig("hot", TierRole.ROWS, row_bytes),
        TierConfig("cold", TierRole.BLOCKS, BLOCKS * row_bytes),
    )
    tiers = TierSet(configs, BlockTable(BLOCKS, 1, 1), codec, metrics)
    return BlockHomes(tiers, None, PrefixIndex(256, min_seen), 1)


def test_c1_a_full_cold_tier_where_hits_and_needed_space_overlap():
    """A million requests of 1 to 4 blocks over 24; hits would be evicted if they were not pinned first."""
    homes = make_homes()
    tier, table = homes.tiers.block_tiers[0], homes.tiers.table
    rng = np.random.default_rng(1)
    firsts = rng.geometric(0.2, REQUESTS).tolist()  # some prefixes are asked for more often than others
    lengths = rng.integers(1, 5, REQUESTS).tolist()
    hits = 0
    for step, (first, length) in enumerate(zip(firsts, lengths, strict=True)):
        keys = range(100 * first, 100 * first + length)
        held = homes.prefixes.ask(keys)
        for block in held:
            homes.reference(block)
        hits += len(held)
        assert length - len(held) <= homes.available_blocks
        for key in keys[len(held) :]:
            block = homes.take_block()
            assert block not in held  # a hit was not given away
            table.home[block] = homes.take_home(block)
            assert table.home[block] != NOWHERE
            homes.prefixes.enter(key, block)
            held.append(block)
        assert tier.free >= 0
        assert tier.free + tier.evictable + length == tier.total
        for block in held:
            homes.dereference(block, keep=True)
        if step % 10_000 == 0:
            assert tier.occupancy().pinned == 0
    assert 0.1 < hits / sum(lengths) < 0.9
    assert homes.tiers.metrics.evicted_blocks > 0
    assert tier.occupancy().free == 0


def test_e3_free_pinned_and_evictable_are_all_slots_at_every_step(rig_of):
    rig = rig_of(hot_rows=(32, 48), cold_blocks=40, reserve_rows=4, seed=3)
    rng = np.random.default_rng(3)
    for name in ("a", "b", "c"):
        rig.start(name, 3)
    states = set()
    for _ in range(60):
        rig.step(name := rng.choice(["a", "b", "c"]))
        rig.cache.place(name, rng.integers(COLD, 2, (2, rig.cache.tokens(name))).astype(np.int8))
        tokens = rng.integers(0, 3, 3)
        (rig.cache.pin if rng.random() < 0.5 else rig.cache.unpin)(name, 0, tokens)
        rig.clock.advance(int(rng.integers(0, 5_000)))
        for tier in rig.cache.occupancy().values():
            assert tier.free + tier.pinned + tier.evictable == tier.total
            assert min(tier.free, tier.pinned, tier.evictable) >= 0
            states.add((tier.free > 0, tier.pinned > 0, tier.evictable > 0))
    assert len(states) >= 3
    for name in ("a", "b", "c"):
        rig.cache.cancel(name)
    assert all(tier.free == tier.total for tier in rig.cache.occupancy().values())


def test_e3_a_slot_lost_or_counted_twice_is_noticed(rig_of):
    rig = rig_of()
    rig.start("a", 4)
    tier = rig.cache._tiers.row_tiers[0]
    tier._state[tier._free[0]] = 1
    with pytest.raises(RuntimeError, match="slots of hot0 count as"):
        rig.step("a")


def test_e5_a_hit_larger_than_the_free_host_space(rig_of):
    """96 home rows for 41 slots: what fits arrives, the rest is deferred, then unfulfilled, never lost."""
    rig = rig_of(hot_rows=41, timeout_ps=10**6, batch_rows=8)
    rig.start("a", 16)
    rig.append("a", 16)
    rig.append("a", 16)
    rig.idle()
    rig.cache.place("a", rig.wanted("a", COLD))
    prefetch = rig.cache.prefetch("a", *rig.everything("a"))
    assert prefetch.wait() is PrefetchState.TIMED_OUT
    metrics = rig.cache.metrics
    assert (prefetch.loaded_rows, metrics.promoted_rows) == (41, 41)
    assert metrics.deferred_rows == metrics.unfulfilled_rows == 55
    assert not rig.check("a").missing.any()


def test_e5_deferred_rows_arrive_once_there_is_room(rig_of):
    rig = rig_of(hot_rows=40, batch_rows=8)
    rig.start("a", 16)
    rig.start("b", 16)
    rig.idle()
    rig.cache.place("a", rig.wanted("a", COLD))
    rig.cache.place("b", rig.wanted("b", 0))
    rig.idle()
    placed = rig.cache.place("a", rig.wanted("a", 0))
    assert rig.cache.metrics.deferred_rows == 24
    rig.cache.place("b", rig.wanted("b", COLD))
    rig.idle()
    assert placed.promoting_rows == 32
    assert rig.check("a").hot.all()
    assert rig.cache.metrics.unfulfilled_rows == 0


def test_e5_no_copy_is_dropped_before_the_lower_one_is_committed(rig_of):
    rig = rig_of(hot_rows=64)
    rig.start("a", 8)
    seen = []
    while rig.cache.engine.active:
        placed = rig.cache.place("a", rig.wanted("a", COLD))
        seen.append((placed.dropped_rows, placed.kept_rows))
        rig.clock.run_next()
    assert set(seen) == {(0, 16)}
    assert rig.cache.place("a", rig.wanted("a", COLD)).dropped_rows == 16


def test_e5_an_append_waits_for_room_and_says_how_long(rig_of):
    rig = rig_of(hot_rows=32)
    rig.start("a", 16)
    rig.append("a", 8)  # evicts what the stores under way have made evictable
    assert rig.cache.metrics.append_wait_ps == rig.clock.now_ps > 0
    assert not rig.check("a").missing.any()


def test_e5_an_append_waits_no_longer_than_it_must(rig_of):
    """Eight stores are under way; the first one makes room enough."""
    waits = []
    for rows in (2, 128):
        rig = rig_of(hot_rows=128)
        rig.start("a", 64)
        rig.append("a", rows // 2)
        waits.append(rig.cache.metrics.append_wait_ps)
    assert 5 * waits[0] < waits[1]


def test_e5_an_append_outlasts_stores_that_time_out_in_the_queue(rig_of):
    """A deadline that four of the eight stores can meet: the others are submitted again."""
    rig = rig_of(hot_rows=128, timeout_ps=1_500_000)
    rig.start("a", 64)
    rig.append("a", 64)
    assert rig.cache.metrics.timed_out_moves > 0
    for token in range(128):
        assert not rig.check("a", [0, 1], token).missing.any()


def test_a_refused_append_leaves_everything_as_it_was(rig_of):
    rig = rig_of(hot_rows=32, cold_blocks=1)
    rig.start("a", 8)
    rig.start("b", 8)
    rig.idle()
    before = rig.cache.occupancy(), rig.cache.tokens("a"), rig.cache.tokens("b")
    with pytest.raises(CapacityError, match="18 rows are to be written; there is room for 16"):
        rig.cache.step({"a": rig.rows("a", 8, 8), "b": rig.rows("b", 8, 1)})
    assert (rig.cache.occupancy(), rig.cache.tokens("a"), rig.cache.tokens("b")) == before
    assert not rig.check("a").missing.any()
    rig.step("a", count=8)


def test_e1_devices_on_one_drive_share_its_bytes(rig_of):
    """Two tiers of three blocks on one drive, one of them limited to two entries."""
    rows, first, second = rig_of(hot_rows=64, cold_blocks=(3, 3)).config.tiers
    first, second = replace(first, max_blocks=2, drive="nvme"), replace(second, drive="nvme")
    rig = rig_of(tiers=(rows, first, second))
    rig.start("a")
    for _ in range(9):
        rig.append("a", 8)
        rig.cache.engine.wait(rig.cache.engine.under_way())
    held = rig.cache.occupancy()
    assert (held["cold0"].pinned, held["cold1"].pinned) == (2, 4)  # six blocks in all, no seventh
    assert rig.cache.metrics.stored_blocks == 6
    with pytest.raises(CapacityError):
        rig.append("a", 16)
    assert not rig.check("a").missing.any()


def test_e1_a_drive_that_is_full_below_its_capacity_costs_one_kept_block(rig_of):
    refuse = {"on": False}

    def no_space(leg, _source, target):
        if refuse["on"] and leg is Leg.WRITE and target == "cold0":
            refuse["on"] = False
            return Outcome.NO_SPACE
        return Outcome.OK

    rig = rig_of(fault=no_space)
    rig.start("kept", 16, keys=["k0", "k1"])
    rig.idle()
    rig.cache.free("kept")
    refuse["on"] = True
    rig.start("a", 8)
    rig.idle()
    metrics = rig.cache.metrics
    assert (metrics.leg_failures[Leg.WRITE], metrics.retried_moves, metrics.evicted_blocks) == (1, 1, 1)
    assert (metrics.stored_blocks, metrics.failed_moves) == (3, 0)
    rig.cache.place("a", rig.wanted("a", COLD))
    assert not rig.check("a").missing.any()
