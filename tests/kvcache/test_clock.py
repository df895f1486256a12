"""Clock, link times and batch sizes."""

from __future__ import annotations

import pytest

from nearkv.kvcache.clock import SimulatedClock
from nearkv.kvcache.mover import DescribedLinks, Leg, MachineLinks, PathTimes, good_batch_bytes
from nearkv.kvcache.tiers import TierRole, tiers_of
from nearkv.machine import open_machine


def test_events_come_in_order_of_time_then_of_request():
    clock, seen = SimulatedClock(), []
    for time_ps, name in ((20, "c"), (10, "a"), (10, "b"), (30, "never"), (40, "d")):
        event = clock.at(time_ps, lambda name=name: seen.append((clock.now_ps, name)))
        if name == "never":
            event.cancel()
    clock.advance(10)
    assert seen == [(10, "a"), (10, "b")]
    clock.advance(5)
    assert (clock.now_ps, len(seen)) == (15, 2)
    assert clock.run_next()
    assert clock.run_next()
    assert seen[2:] == [(20, "c"), (40, "d")]
    assert not clock.run_next()
    assert clock.now_ps == 40


def test_an_event_may_ask_for_another_at_its_own_time():
    clock, seen = SimulatedClock(), []
    clock.at(5, lambda: clock.at(5, lambda: seen.append(clock.now_ps)))
    clock.advance(5)
    assert seen == [5]


def test_time_does_not_go_back():
    clock = SimulatedClock()
    clock.advance(7)
    with pytest.raises(ValueError, match="time_ps is 6; allowed: from now, 7"):
        clock.at(6, lambda: None)
    with pytest.raises(ValueError, match="duration_ps is -1"):
        clock.advance(-1)


def test_described_links_fall_back_to_the_default():
    fast, slow = PathTimes(10, 1e12, 20, 1e12), PathTimes(1_000, 1e9, 2_000, 1e9)
    links = DescribedLinks(slow, {("a", "b"): fast})
    assert [links.leg_ps(leg, "a", "b", 100) for leg in Leg] == [110, 120, 0]
    assert [links.leg_ps(leg, "b", "a", 100) for leg in Leg] == [101_000, 102_000, 0]
    with pytest.raises(ValueError, match="link_latency_ps is -1"):
        PathTimes(0, 1.0, -1, 1.0)
    with pytest.raises(ValueError, match=r"read_bytes_per_s is 0\.0"):
        PathTimes(0, 0.0, 0, 1.0)


@pytest.mark.parametrize(("source", "target"), [("nand", "host_memory"), ("host_memory", "nand")])
@pytest.mark.parametrize("nbytes", [512, 1 << 20])
def test_legs_of_a_machine_add_up_to_its_transfer(source, target, nbytes):
    machine = open_machine("hillinfer")
    legs = [MachineLinks(machine).leg_ps(leg, source, target, nbytes) for leg in Leg]
    assert sum(legs) == machine.transfer(source, target, nbytes).time_ps
    assert min(legs) >= 0
    assert legs[0] > 0


def test_batches_grow_with_the_latency_of_the_link():
    """46 µs + bytes / 2.14 GB/s (vendor log of a SmartSSD): nine latencies' worth of bytes are 90 %."""
    smartssd = DescribedLinks(PathTimes(46_000_000, 2.14e9, 0, 1e18))
    nbytes = good_batch_bytes(smartssd, "ssd", "dram", 512)
    assert nbytes == 1 << 20  # 9 · 46 µs · 2.14 GB/s = 886 kB, the next doubling of 512
    assert good_batch_bytes(DescribedLinks(PathTimes(0, 1e9, 0, 1e9)), "ssd", "dram", 512) == 512
    with pytest.raises(ValueError, match="smallest_bytes is 0"):
        good_batch_bytes(smartssd, "ssd", "dram", 0)


def test_tiers_follow_from_a_machine():
    description = open_machine("hillinfer").description
    tiers = tiers_of(description, {"host_memory": 1 << 20, "nand": 1 << 22}, reserve_rows=8)
    assert [(tier.name, tier.role) for tier in tiers] == [
        ("host_memory", TierRole.ROWS),
        ("nand", TierRole.BLOCKS),
    ]
    assert [tier.reserve_rows for tier in tiers] == [8, 0]
    pam = open_machine("pam").description
    tiers = tiers_of(pam, {"hbm_pim": 1 << 20, "ddr_pim": 1 << 21, "ssd_pim": 1 << 22})
    assert [tier.role for tier in tiers] == [TierRole.ROWS, TierRole.ROWS, TierRole.BLOCKS]
    with pytest.raises(ValueError, match="tier is 'dram'"):
        tiers_of(description, {"dram": 1})
    with pytest.raises(ValueError, match="capacity_bytes of card_memory is"):
        tiers_of(description, {"card_memory": 1 << 40})
