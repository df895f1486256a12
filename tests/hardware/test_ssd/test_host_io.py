"""Queue pairs, direct I/O and the peer-to-peer path, by hand."""

from dataclasses import replace

import pytest
import simpy

from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.hardware.pcie_fabric import PeerConfig
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.direct_io import DirectIo, HostIoConfig
from nearkv_sim.hardware.ssd.nvme import QueuePair
from nearkv_sim.hardware.ssd.workloads import peer_transfer_ps

US = 10**6
LINK = PcieLinkConfig()  # 150 ns one way, 300 ns in the root complex, 3 us to the handler
HOST = HostIoConfig(call_ps=7 * US, page_ps=US // 4)
# Doorbell 150, fetch 600, completion 150 ns.
QUEUE_PS = 900_000


def test_queue_adds_doorbell_fetch_and_completion():
    for interrupts, extra_ps in ((False, 0), (True, 3 * US)):
        env = simpy.Environment()
        queue = QueuePair(env, LINK, interrupts=interrupts)
        env.run(queue.submit(lambda env=env: env.timeout(50 * US)))
        assert env.now == 50 * US + QUEUE_PS + extra_ps
        assert (queue.doorbells, queue.outstanding, queue.deepest) == (2, 0, 1)


def test_a_ring_holds_one_command_less_than_it_has_entries():
    env = simpy.Environment()
    queue = QueuePair(env, LINK, entries=4, interrupts=False)
    events = [queue.submit(lambda: env.timeout(10 * US)) for _ in range(7)]
    assert queue.outstanding == 3
    env.run(env.all_of(events))
    assert (env.now, queue.deepest) == (3 * (10 * US + QUEUE_PS), 3)


@pytest.mark.parametrize("entries", [1, 65_537, 2.0])
def test_impossible_rings_are_refused(entries):
    with pytest.raises(ValueError, match=f"entries is {entries}; allowed is an integer from 2 to 65536"):
        QueuePair(simpy.Environment(), LINK, entries=entries)


def test_direct_io_pins_pages_then_submits(drive, small):
    env, ssd, _ = drive()  # empty: a read is 10 us of firmware and 1 us of link
    io = DirectIo(env, ssd, QueuePair(env, LINK), HOST)
    env.run(io.pread(0, 3 * 4096))
    assert env.now == 7 * US + 3 * US // 4 + QUEUE_PS + 14 * US
    # Above the largest transfer the pages of each piece are pinned while those before it are under way.
    env, ssd, _ = drive(replace(small, max_transfer_bytes=65_536))
    io = DirectIo(env, ssd, QueuePair(env, LINK), HOST)
    env.run(io.pread(0, 4 * 65_536))
    assert env.now == 7 * US + 4 * 4 * US + QUEUE_PS + 14 * US


def test_every_constant_of_a_peer_transfer_moves_time():
    drive_config = named_profile("ssd", "pm983", SsdConfig).config
    peer = named_profile("peer", "smartssd", PeerConfig).config

    def read_ps(peer=peer, host=HOST, nbytes=1 << 18, write=False):
        return peer_transfer_ps(drive_config, peer, host, nbytes, write=write)

    assert read_ps(nbytes=1 << 18) < read_ps(nbytes=(1 << 18) + 4096)
    for name, value in (
        ("one_way_latency_ps", 200_000),
        ("switch_hop_ps", 200_000),
        ("target_write_bytes_per_s", 2_000_000_000),
    ):
        assert read_ps(replace(peer, **{name: value})) > read_ps(), name
    slower = replace(peer, generation=1, target_write_bytes_per_s=10**12)
    assert read_ps(slower) > read_ps(replace(slower, generation=3))
    for name, value in (("target_read_latency_ps", 700_000), ("target_read_bytes_per_s", 10**9)):
        assert read_ps(replace(peer, **{name: value}), write=True) > read_ps(write=True), name
        assert read_ps(replace(peer, **{name: value})) > read_ps() or name.startswith("target_read")
    assert read_ps(host=replace(HOST, call_ps=8 * US)) == read_ps() + US
    assert read_ps(host=replace(HOST, page_ps=2 * HOST.page_ps)) == read_ps() + 64 * HOST.page_ps


def test_a_peer_transfer_never_exceeds_the_slowest_part():
    drive_config = named_profile("ssd", "pm983", SsdConfig).config
    peer = named_profile("peer", "smartssd", PeerConfig).config
    for write, bound in ((False, peer.target_write_bytes_per_s), (True, peer.target_read_bytes_per_s)):
        elapsed_ps = peer_transfer_ps(drive_config, peer, HOST, 1 << 24, write=write)
        assert (1 << 24) * 10**12 / elapsed_ps < bound
