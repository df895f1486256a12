"""Placement and choices of the flash translation layer."""

import pytest

from nearkv_sim.hardware.ssd.ftl import Ftl, Stamp

SLOTS = 128  # of a superblock of the small drive: 4 dies x 8 program units x 4


def fill(ftl, units, sequence):
    """Write units in order, a program unit at a time."""
    for first in range(0, len(units), 4):
        stamp = Stamp(sequence, sequence)
        ftl.commit(ftl.allocate("host"), [(unit, stamp) for unit in units[first : first + 4]])


def test_program_units_go_round_the_dies(small):
    ftl = Ftl(small)
    slots = [ftl.allocate("host") for _ in range(6)]
    assert slots == [0, 4, 8, 12, 16, 20]
    assert [ftl.place(slot).die for slot in slots] == [0, 1, 2, 3, 0, 1]
    # Two pages of two units: a row each, of rising page type; the same rows on other dies are others.
    assert [ftl.place(slot).page_type for slot in range(4)] == [0, 0, 1, 1]
    assert len({ftl.place(slot).row for slot in range(SLOTS)}) == SLOTS // 2


def test_streams_have_superblocks_of_their_own(small):
    ftl = Ftl(small)
    assert {ftl.allocate(stream) // SLOTS for stream in ("host", "collector", "host")} == {0, 1}
    assert ftl.free_superblocks == 14


def test_least_erased_superblock_is_taken_first(small):
    ftl = Ftl(small)
    ftl.erases[:4] = [2, 1, 0, 1]
    ftl.erases[4:] = [3] * 12
    assert [ftl.allocate(stream) // SLOTS for stream in ("host", "collector")] == [2, 1]


def test_victim_has_the_fewest_valid_units(small):
    ftl = Ftl(small)
    fill(ftl, range(3 * SLOTS), 1)
    assert ftl.victim() is None  # all full: nothing to gain
    fill(ftl, [*range(8), *range(SLOTS, SLOTS + 24), *range(2 * SLOTS, 2 * SLOTS + 16)], 2)
    assert ftl.valid[:4] == [SLOTS - 8, SLOTS - 24, SLOTS - 16, 48]
    assert ftl.victim() == 1
    assert ftl.valid_units(1) == list(range(SLOTS + 24, 2 * SLOTS))


def test_a_superblock_with_programs_under_way_is_no_victim(small):
    ftl = Ftl(small)
    fill(ftl, range(SLOTS - 4), 1)
    last = ftl.allocate("host")
    fill(ftl, range(SLOTS - 4), 2)
    assert ftl.victim() is None
    ftl.commit(last, [(SLOTS - 1, Stamp(1, 1))])
    assert ftl.victim() == 0


def test_release_refuses_what_is_still_valid(small):
    ftl = Ftl(small)
    fill(ftl, range(SLOTS), 1)
    with pytest.raises(AssertionError, match="holds valid units"):
        ftl.release(0)
    fill(ftl, range(SLOTS), 2)
    ftl.release(0)
    assert (ftl.erases[0], ftl.free_superblocks) == (1, 15)


def test_the_collector_keeps_the_last_superblocks(small):
    ftl = Ftl(small)
    fill(ftl, range(14 * SLOTS), 1)
    assert ftl.free_superblocks == 2
    assert not ftl.can_allocate("host")
    assert ftl.can_allocate("collector")


def test_snapshot_is_a_copy_without_what_was_under_way(small):
    ftl = Ftl(small)
    fill(ftl, range(8), 1)
    ftl.allocate("host")
    survivor = ftl.snapshot({})
    fill(ftl, [0, 1, 2, 3], 2)
    assert (survivor.stamp(0).tag, ftl.stamp(0).tag) == (1, 2)
    assert survivor.allocate("host") == 12
