"""Placement: differences only, equal swaps, what is fetched is not read again."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.kvcache.placement import COLD, KEEP
from nearkv.kvcache.sequences import CapacityError


def test_only_differences_move_and_demotion_moves_nothing(rig_of):
    rig = rig_of()
    rig.start("a", 16)
    rig.idle()
    before = dict(rig.cache.metrics.moved_bytes)
    wanted = rig.wanted("a", COLD)
    wanted[0, :5] = 0
    placed = rig.cache.place("a", wanted)
    assert (placed.dropped_rows, placed.promoting_rows, placed.moves) == (27, 0, ())
    assert dict(rig.cache.metrics.moved_bytes) == before
    wanted[1, 3] = 0
    placed = rig.cache.place("a", wanted)
    assert (placed.dropped_rows, placed.promoting_rows, len(placed.moves)) == (0, 1, 1)
    again = rig.cache.place("a", wanted)  # while it is on its way
    assert (again.promoting_rows, again.moves) == (0, ())
    rig.idle()
    assert (rig.cache.tier_numbers("a") == wanted).all()
    assert rig.cache.metrics.moved_bytes["cold0", "hot0"] == 16
    assert rig.cache.place("a", wanted).moves == ()
    assert rig.check("a").hot.sum() == 6


def test_keep_leaves_rows_as_they_are(rig_of):
    rig = rig_of()
    rig.start("a", 8)
    rig.idle()
    placed = rig.cache.place("a", rig.wanted("a", KEEP))
    assert (placed.dropped_rows, placed.moves) == (0, ())


def test_what_a_step_fetched_is_promoted_without_another_read(rig_of):
    rig = rig_of()
    rig.start("a", 16)
    rig.idle()
    rig.cache.place("a", rig.wanted("a", COLD))
    rig.check("a", 0, np.array([2, 3, 5]))
    read_bytes = rig.cache.metrics.moved_bytes["cold0", "hot0"]
    wanted = rig.wanted("a", COLD)
    wanted[0, 2:5] = 0
    placed = rig.cache.place("a", wanted)
    assert (placed.reused_rows, placed.promoting_rows) == (2, 1)
    rig.idle()
    assert rig.cache.metrics.moved_bytes["cold0", "hot0"] - read_bytes == 16
    assert rig.check("a", 0, np.arange(16)).hot.sum() == 3
    rig.step()  # rows fetched in one step do not serve the next
    wanted[0, 5] = 0
    assert rig.cache.place("a", wanted).reused_rows == 0


@pytest.mark.parametrize("swap_rows", [4, 20])
def test_two_full_tiers_swap_equal_volumes_through_their_reserves(rig_of, swap_rows):
    """Tiers of 32 rows with 4 in reserve each: the fast one's rows change places with the slow one's."""
    rig = rig_of(hot_rows=(32, 32), reserve_rows=4, seed=2)
    rig.start("a", 16)
    rig.append("a", 12)
    rig.idle()
    wanted = np.zeros((2, 28), np.int8)
    wanted[1] = 1
    rig.cache.place("a", wanted)
    rig.idle()
    assert (rig.cache.tier_numbers("a") == wanted).all()
    wanted[0, :swap_rows], wanted[1, :swap_rows] = 1, 0
    before = rig.cache.metrics.shifted_rows
    placed = rig.cache.place("a", wanted)
    assert placed.shifting_rows == 2 * swap_rows
    assert rig.check("a").hot.all()  # the old copies serve until the new ones are committed
    rig.idle()
    assert (rig.cache.tier_numbers("a") == wanted).all()
    assert rig.cache.metrics.shifted_rows - before == 2 * swap_rows
    assert rig.cache.metrics.unfulfilled_rows == 0
    assert rig.check("a").hot.all()


def test_a_shift_carries_pins_and_the_mark_of_the_only_copy(rig_of):
    rig = rig_of(hot_rows=(32, 32), reserve_rows=4)
    rig.start("a", 12)
    rig.idle()
    assert rig.cache.pin("a", 0, np.arange(2)) == 2
    rig.cache.place("a", rig.wanted("a", 1))
    rig.idle()
    held = rig.cache.occupancy()
    assert (held["hot0"].free, held["hot1"].pinned, held["hot1"].evictable) == (32, 8 + 2, 14)
    placed = rig.cache.place("a", rig.wanted("a", COLD))
    assert (placed.dropped_rows, placed.kept_rows) == (14, 10)
    rig.cache.unpin("a", 0, np.arange(2))
    assert rig.cache.place("a", rig.wanted("a", COLD)).dropped_rows == 2
    rig.step("a", count=4)
    rig.idle()
    assert not rig.check("a").missing.any()


def test_copies_that_wait_to_be_moved_give_way_to_an_append(rig_of):
    """Both tiers full, no reserve to swap through: the shift waits, and would keep its sources' slots."""
    rig = rig_of(hot_rows=(16, 16))
    rig.start("a", 16)
    rig.idle()
    swapped = (1 - rig.cache.tier_numbers("a")).astype(np.int8)
    placed = rig.cache.place("a", swapped)
    assert placed.shifting_rows == rig.cache.metrics.deferred_rows == 32
    assert rig.cache.occupancy()["hot0"].evictable == 0
    rig.step("a", count=2)
    assert rig.cache.metrics.unfulfilled_rows == 32
    assert not rig.check("a").missing.any()


def test_pins_keep_copies_against_appends(rig_of):
    rig = rig_of(hot_rows=32)
    rig.start("a", 16)
    rig.idle()
    assert rig.cache.pin("a", *rig.everything("a")) == 32
    with pytest.raises(CapacityError, match="2 rows are to be written; there is room for 0"):
        rig.step("a")
    rig.cache.unpin("a", 1, np.arange(16))
    rig.step("a")
    assert rig.check("a", 0, np.arange(16)).hot.all()


def test_appends_evict_the_rows_with_the_lowest_hit_rates(rig_of):
    rig = rig_of(hot_rows=32)
    rig.start("a", 16)
    rig.idle()
    for _ in range(3):
        rig.check("a", [[0], [1]], np.arange(4, 16))
        rig.step("a", count=0)
    rig.step("a", count=4)
    hot = rig.cache.tier_numbers("a") == 0
    assert not hot[:, :4].any()
    assert hot[:, 4:].all()
