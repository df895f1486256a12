"""Receive-buffer credits, latency tails and switch hops of a PCIe link."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from nearkv_sim.hardware.pcie import PcieLink, PcieLinkConfig
from nearkv_sim.hardware.pcie_credits import CreditConfig, CreditGate, TlpKind
from nearkv_sim.hardware.pcie_latency import XEON_E3_TAIL, XEON_E5_TAIL, LatencyTail, TailSampler

HIGH = 1 << 32
GEN3_X4 = PcieLinkConfig(generation=3, lanes=4)
ENDLESS = CreditConfig(posted_headers=0, posted_data=0, non_posted_headers=0)


def test_a_write_waits_for_the_only_header_credit_by_hand():
    link = PcieLink(GEN3_X4, credits=replace(ENDLESS, posted_headers=1))
    # 88 bytes = 22403 1/3 ps and 150 ns; back after a window of 217923 1/3 ps and 150 ns: 540326 2/3.
    assert link.device_write(0, HIGH, 64) == 172_404
    assert link.device_write(0, HIGH, 64) == 712_730
    # A read request is of another kind, and passes.
    link = PcieLink(GEN3_X4, credits=replace(ENDLESS, posted_headers=1))
    link.device_write(0, HIGH, 64)
    free = PcieLink(GEN3_X4)
    free.device_write(0, HIGH, 64)
    assert link.device_read(0, HIGH, 64) == free.device_read(0, HIGH, 64)
    slow = PcieLink(GEN3_X4, credits=replace(ENDLESS, posted_headers=1, drain_ps=1000))
    slow.device_write(0, HIGH, 64)
    assert slow.device_write(0, HIGH, 64) == 713_730


@pytest.mark.parametrize("data_credits", [16, 32, 64])
def test_data_credits_bound_throughput(data_credits):
    link = PcieLink(GEN3_X4, credits=replace(ENDLESS, posted_data=data_credits))
    total_bytes = 1 << 18
    end_ps = link.device_write(0, HIGH, total_bytes)
    # A full packet (280 bytes) there, its window, and back: 16 bytes a credit in that time, at most.
    loop_ps = 280 * GEN3_X4.byte_time_ps + 217_923 + 2 * 150_000
    bound = data_credits * 16 / float(loop_ps)
    # The last packets wait for nobody's return.
    assert (total_bytes - data_credits * 16) / end_ps <= bound < 1.01 * total_bytes / end_ps


@pytest.mark.parametrize("method", ["device_write", "device_read", "mmio_write", "mmio_read"])
def test_enough_credits_change_nothing(method):
    # A loop takes 540 ns and the packet, a 24-byte request 6 ns: 90 headers are under way at most.
    enough = CreditConfig(
        posted_headers=127,
        posted_data=1024,
        non_posted_headers=127,
        completion_headers=127,
        completion_data=1024,
    )
    rng, ends = random.Random(1), []
    sizes = [rng.randrange(1, 64) if "mmio" in method else rng.randrange(1, 9000) for _ in range(200)]
    for credits in (None, ENDLESS, enough):
        link = PcieLink(GEN3_X4, credits=credits)
        ends.append([getattr(link, method)(0, HIGH + 64 * index, size) for index, size in enumerate(sizes)])
    assert ends[0] == ends[1] == ends[2]


def test_every_kind_is_limited():
    def ends(credits):
        link = PcieLink(GEN3_X4, credits=credits)
        calls = [("device_read", 4096), ("device_write", 4096), ("mmio_write", 64), ("mmio_read", 64)]
        return {name: max(getattr(link, name)(0, HIGH, size) for _ in range(50)) for name, size in calls}

    free = ends(ENDLESS)
    for name, kinds in (
        ("posted_headers", ("device_write", "mmio_write")),
        ("posted_data", ("device_write", "mmio_write")),
        ("non_posted_headers", ("device_read", "mmio_read")),
        ("completion_headers", ("device_read", "mmio_read")),
        ("completion_data", ("device_read",)),
    ):
        limited = ends(replace(ENDLESS, **{name: 16 if name.endswith("data") else 1}))
        assert all(limited[kind] > free[kind] for kind in kinds), name


def test_gate_never_lets_more_through_than_it_announced():
    config = CreditConfig(posted_headers=3, posted_data=40)
    gate, rng, under_way, now = CreditGate(config), random.Random(2), [], 0
    for _ in range(2000):
        payload_bytes = rng.choice([0, 4, 64, 256, 640])
        at = gate.ready_at(TlpKind.POSTED, payload_bytes, now)
        gate.take(TlpKind.POSTED, payload_bytes, at)
        # Returns are in order, as UpdateFC counters are.
        back = max(at + rng.randrange(1, 100), under_way[-1][0] if under_way else 0)
        gate.give_back(TlpKind.POSTED, payload_bytes, back)
        under_way.append((back, -(-payload_bytes // 16)))
        now = at
        held = [data for back, data in under_way if back > now]
        assert len(held) <= 3
        assert sum(held) <= 40


def test_gate_says_when_it_cannot_know():
    gate = CreditGate(CreditConfig(posted_headers=1, posted_data=0))
    gate.take(TlpKind.POSTED, 64, 0)
    assert gate.ready_at(TlpKind.POSTED, 64, 5) is None
    gate.give_back(TlpKind.POSTED, 64, 20)
    assert gate.ready_at(TlpKind.POSTED, 64, 5) == 20
    with pytest.raises(AssertionError, match="header credit"):
        gate.take(TlpKind.POSTED, 64, 19)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("posted_headers", 128, "from 0 to 127"),
        ("posted_data", 2048, "from 0 to 2047"),
        ("non_posted_headers", -1, "from 0"),
        ("drain_ps", 0.5, "an integer"),
    ],
)
def test_impossible_credits_are_refused(field, value, message):
    with pytest.raises(ValueError, match=rf"{field} is {value}; allowed is .*{message}"):
        replace(ENDLESS, **{field: value})


def test_credits_must_hold_a_full_packet():
    with pytest.raises(ValueError, match=r"posted_data is 15; allowed: 0 \(infinite\), or at least 16"):
        PcieLink(GEN3_X4, credits=CreditConfig(posted_data=15))


def test_switch_hops_add_latency_and_cost_no_throughput():
    through = replace(GEN3_X4, switch_hops=2, switch_hop_ps=110_000)
    for method, ways in (("device_write", 1), ("device_read", 2)):
        direct_ps, hops_ps = (getattr(PcieLink(config), method)(0, HIGH, 64) for config in (GEN3_X4, through))
        assert hops_ps - direct_ps == ways * 2 * 110_000
    long_ps = PcieLink(through).device_write(0, HIGH, 1 << 20)
    assert long_ps - PcieLink(GEN3_X4).device_write(0, HIGH, 1 << 20) == 220_000
    with pytest.raises(ValueError, match="switch_hops is -1"):
        replace(GEN3_X4, switch_hops=-1)


def test_tail_is_the_quantile_function_it_is_given():
    tail = LatencyTail(((0, 0), (500_000, 100), (10**6, 1100)))
    cases = ((0, 0), (250_000, 50), (500_000, 100), (750_000, 600), (10**6, 1100))
    assert [tail.extra_ps(Fraction(share)) for share, _ in cases] == [extra for _, extra in cases]
    for shape in (XEON_E5_TAIL, XEON_E3_TAIL):
        sampler = TailSampler(shape, seed=4)
        drawn = [sampler.draw_ps() for _ in range(10_000)]
        for share, extra in shape.points[1:3]:
            assert sum(one <= extra for one in drawn) / 10_000 == pytest.approx(share / 10**6, abs=0.01)


def test_tail_delays_reads_reproducibly():
    def latencies(seed):
        tail = TailSampler(XEON_E5_TAIL, seed) if seed else None
        # 2 x 150 ns, 24 and 84 bytes on the wire: the 520 ns of an unloaded Xeon E5's shortest 64-byte read.
        link = PcieLink(replace(GEN3_X4, root_complex_read_latency_ps=192_505), tail=tail)
        starts = [index * 10_000_000 for index in range(2000)]
        return [link.device_read(start, HIGH, 64) - start for start in starts]

    assert set(latencies(None)) <= {520_000, 520_001}
    assert latencies(1) == latencies(1) != latencies(2)
    drawn = sorted(latencies(1))
    assert drawn[0] >= 520_000
    assert drawn[1000] == pytest.approx(547_000, rel=0.01)
    assert drawn[-1] <= 947_001


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((), r"shares are \[\]"),
        (((0, 0), (5, 1)), "allowed: ascending from 0 to 1000000"),
        (((0, 0), (0, 1), (10**6, 2)), "allowed: ascending"),
        (((0, 5), (10**6, 4)), "allowed: none below the one before"),
        (((0, -1), (10**6, 4)), "extra_ps is -1"),
    ],
)
def test_impossible_tails_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        LatencyTail(points)
