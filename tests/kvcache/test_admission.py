"""Writes to block tiers: which are made, and what they are good for."""

from __future__ import annotations

import math

import pytest


def test_d6_at_full_budget_a_block_that_would_be_evicted_at_once_is_not_written(rig_of):
    rig = rig_of(cold_blocks=2, hot_rows=64, min_seen=2)
    for name in ("x", "y"):  # a prompt asked for twice fills the drive
        rig.start(name, 16, keys=["p0", "p1"])
        rig.cache.free(name)
        rig.idle()
    assert rig.cache.occupancy()["cold0"].free == 0
    written = rig.cache.metrics.block_bytes_written
    for number in range(2):
        rig.start(f"once{number}", 16, keys=["q0", "q1"])
        rig.cache.free(f"once{number}")
        rig.idle()
    assert rig.cache.metrics.block_bytes_written == written
    assert rig.cache.metrics.refused_blocks == 6
    assert rig.start("z", keys=["p0", "p1"]) == 16
    rig.requests["z"] = rig.requests["y"]
    assert not rig.check("z").missing.any()
    hits = rig.cache.metrics.loaded_rows
    assert rig.cache.metrics.bytes_written_per_useful_hit == written / hits
    for number in range(2, 4):  # asked for more often than what is kept: now worth it
        rig.cache.cancel("z") if number == 2 else None
        rig.start(f"once{number}", 16, keys=["q0", "q1"])
        rig.cache.free(f"once{number}")
        rig.idle()
    assert rig.start("q", keys=["q0", "q1"]) == 16


@pytest.mark.parametrize("min_seen", [1, 2, 3])
def test_d7_a_block_is_written_to_be_kept_only_when_seen_often_enough(rig_of, min_seen):
    rig = rig_of(min_seen=min_seen)
    stored = []
    for visit in range(4):
        held = rig.start(name := f"v{visit}", keys=["p"])
        rig.requests[name] = 1
        if held == 0:
            rig.append(name, 8)
        rig.idle()
        rig.cache.free(name)
        rig.idle()
        stored.append(rig.cache.metrics.stored_blocks)
    assert stored == [int(visit + 1 >= min_seen) for visit in range(4)]
    assert rig.cache.metrics.block_bytes_written == rig.config.block_rows * 32
    assert rig.cache.metrics.refused_blocks == min_seen - 1


def test_d7_rows_that_room_is_needed_for_are_written_whatever_the_threshold(rig_of):
    rig = rig_of(hot_rows=32, min_seen=5)
    rig.start("a", 16)
    rig.idle()
    assert rig.cache.metrics.stored_blocks == 0
    assert rig.cache.metrics.bytes_written_per_useful_hit == 0
    rig.append("a", 1)
    assert rig.cache.metrics.stored_blocks >= 1
    assert math.isinf(rig.cache.metrics.bytes_written_per_useful_hit)
    assert not rig.check("a").missing.any()
