"""Peer-to-peer and shared links below a switch."""

import random
from dataclasses import replace

import pytest
import simpy

from nearkv_sim.hardware.link import Direction, PcieRate
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.hardware.pcie_credits import CreditConfig
from nearkv_sim.hardware.pcie_fabric import PeerConfig, PeerLink
from nearkv_sim.hardware.pcie_switch import PcieSwitch

X4 = PcieLinkConfig(generation=3, lanes=4)
X1 = replace(X4, lanes=1)
MIB = 1 << 20


def switch(credits=None, **ports):
    env = simpy.Environment()
    ports = ports or dict.fromkeys(("host", "a", "b", "c"), X4)
    return env, PcieSwitch(env, ports, hop_ps=130_000, credits=credits)


def finish(env, *streams):
    env.run(env.all_of(list(streams)))
    return env.now


def gb_per_s(nbytes, elapsed_ps):
    return nbytes * 1000 / elapsed_ps


def test_one_write_and_one_read_by_hand():
    env, fabric = switch()
    # 88 bytes on either link, cut through: 22403 1/3 ps once, 150 + 130 + 150 ns.
    assert finish(env, fabric.write("a", "b", 64)) == pytest.approx(452_403, abs=2)
    assert (fabric.payload_bytes_into("b"), fabric.payload_bytes_into("a")) == (64, 0)
    env, fabric = switch()
    # Request of 24 bytes = 6110 ps, 300 ns in the target, completion of 84 bytes = 21385 ps.
    assert finish(env, fabric.read("a", "b", 64)) == pytest.approx(6110 + 21_385 + 300_000 + 860_000, abs=6)
    assert (fabric.payload_bytes_into("b"), fabric.payload_bytes_into("a")) == (0, 64)


def test_links_of_unequal_speed_cut_through():
    env, fabric = switch(host=X4, a=X4, b=X1)
    # The slow link is the longer one: 88 bytes at a quarter of the speed from the first byte on.
    assert finish(env, fabric.write("a", "b", 64)) == pytest.approx(4 * 22_403.3 + 430_000, abs=3)
    env, fabric = switch(host=X4, a=X1, b=X4)
    assert finish(env, fabric.write("a", "b", 64)) == pytest.approx(4 * 22_403.3 + 430_000, abs=3)


@pytest.mark.parametrize("way", ["write", "read"])
def test_two_streams_share_what_they_have_in_common(way):
    def elapsed_ps(*pairs):
        env, fabric = switch()
        return finish(env, *(getattr(fabric, way)(source, target, MIB) for source, target in pairs))

    alone = elapsed_ps(("a", "b"))
    assert gb_per_s(MIB, alone) == pytest.approx(3.61, rel=0.01)
    assert elapsed_ps(("a", "b"), ("c", "b")) == pytest.approx(2 * alone, rel=0.01)
    assert elapsed_ps(("a", "b"), ("a", "c")) == pytest.approx(2 * alone, rel=0.01)
    assert elapsed_ps(("a", "b"), ("c", "host")) == alone
    # Both directions: writes do not meet; read requests wait for their turn among the other's completions.
    assert alone <= elapsed_ps(("a", "b"), ("b", "a")) < 1.15 * alone


def test_streams_take_turns():
    env, fabric = switch()
    ends = {}
    for source, nbytes in (("a", MIB), ("c", MIB // 4)):
        stream = fabric.write(source, "b", nbytes)
        stream.callbacks.append(lambda _, source=source: ends.update({source: env.now}))
    env.run()
    # The short one gets half the link until it ends, half as late as both together.
    assert ends["c"] == pytest.approx(0.4 * ends["a"], rel=0.02)


def test_few_credits_and_few_tags_slow_down():
    tight = CreditConfig(posted_headers=1, posted_data=16, non_posted_headers=1)
    env, fabric = switch(tight)
    slow_ps = finish(env, fabric.write("a", "b", MIB // 16))
    env, fabric = switch()
    assert finish(env, fabric.write("a", "b", MIB // 16)) < slow_ps / 4
    # One packet per loop: there (280 bytes, half of it before the switch), window, back.
    loop_ps = 280 * float(X4.byte_time_ps) + 150_000 + 130_000 + 217_923 + 150_000
    assert slow_ps == pytest.approx(256 * loop_ps, rel=0.01)
    env, fabric = switch(host=X4, a=replace(X4, tags=1), b=X4)
    one_ps = finish(env, fabric.read("a", "b", MIB // 16))
    round_trip_ps = 860_000 + 300_000 + (24 + 276 * 2) * float(X4.byte_time_ps)
    assert one_ps == pytest.approx(128 * round_trip_ps, rel=0.01)


def test_a_slow_target_holds_up_its_source_by_credits():
    env, fabric = switch(host=X4, a=X4, b=X1, c=X4)
    slow, fast = fabric.write("a", "b", MIB // 4), fabric.write("a", "c", MIB // 4)
    fast_end = []
    fast.callbacks.append(lambda _: fast_end.append(env.now))
    finish(env, slow, fast)
    env, fabric = switch(host=X4, a=X4, b=X1, c=X4)
    alone_ps = finish(env, fabric.write("a", "c", MIB // 4))
    # Packets for the slow target fill the switch's only posted buffer of that port.
    assert fast_end[0] > 2.2 * alone_ps


def test_no_link_carries_more_than_its_rate():
    rng = random.Random(6)
    env, fabric = switch()
    names = ["host", "a", "b", "c"]
    for _ in range(30):
        source, target = rng.sample(names, 2)
        getattr(fabric, rng.choice(["read", "write"]))(source, target, rng.randrange(1, 100_000))
    env.run()
    bound = PcieRate(X4).bound_bytes_per_s(Direction.IN)
    for name in names:
        assert fabric.payload_bytes_into(name) * 10**12 <= bound * env.now


@pytest.mark.parametrize(("way", "direction"), [("write", Direction.OUT), ("read", Direction.IN)])
@pytest.mark.parametrize("nbytes", [4096, 65_536, MIB])
def test_peer_link_is_the_switch_in_one_step(way, direction, nbytes):
    env, fabric = switch()
    by_packets_ps = finish(env, getattr(fabric, way)("a", "b", nbytes))
    peer = PeerConfig(
        generation=3,
        lanes=4,
        max_payload_bytes=256,
        one_way_latency_ps=150_000,
        switch_hop_ps=130_000,
        target_read_latency_ps=300_000,
        target_write_bytes_per_s=10**12,
        target_read_bytes_per_s=10**12,
    )
    assert PeerLink(peer).transfer(0, nbytes, direction) == pytest.approx(by_packets_ps, rel=0.005)


def test_same_streams_same_times():
    def run():
        env, fabric = switch()
        ends = []
        for way, source, target in (("write", "a", "b"), ("read", "a", "b"), ("read", "c", "b")):
            stream = getattr(fabric, way)(source, target, 50_001)
            stream.callbacks.append(lambda _: ends.append(env.now))
        env.run()
        return ends

    assert run() == run()


def test_impossible_uses_are_refused():
    env, fabric = switch()
    with pytest.raises(ValueError, match="port is 'x'; allowed: host, a, b, c"):
        fabric.write("a", "x", 64)
    with pytest.raises(ValueError, match="target is 'a'; allowed: another port"):
        fabric.read("a", "a", 64)
    with pytest.raises(ValueError, match="nbytes is 0"):
        fabric.write("a", "b", 0)
    with pytest.raises(ValueError, match=r"ports are \['a'\]; allowed: at least two"):
        PcieSwitch(env, {"a": X4}, hop_ps=0)
    with pytest.raises(ValueError, match="hop_ps is -1"):
        PcieSwitch(env, {"a": X4, "b": X4}, hop_ps=-1)
    with pytest.raises(ValueError, match="posted_data is 8"):
        PcieSwitch(env, {"a": X4, "b": X4}, hop_ps=0, credits=CreditConfig(posted_data=8))
