"""What every link has in common, and what NVLink and CXL.mem add."""

from dataclasses import replace

import pytest

from nearkv_sim.hardware.link import Direction, PcieRate, PcieTransfers
from nearkv_sim.hardware.link_flits import FlitLink, FlitLinkConfig
from nearkv_sim.hardware.link_open import link_names, open_link
from nearkv_sim.hardware.link_pipe import Pipe
from nearkv_sim.hardware.pcie import PcieLink
from nearkv_sim.hardware.pcie_config import PRESETS, PcieLinkConfig

# 1 GB/s = 1 byte per ns; packets of 64 bytes and 8 of overhead.
FLITS = FlitLinkConfig(
    raw_bytes_per_s=10**9,
    packet_payload_bytes=64,
    packet_overhead_bytes=8,
    flit_bytes=16,
    read_request_bytes=16,
    one_way_latency_ps=100_000,
    target_read_latency_ps=500_000,
)


def links():
    return {
        **{name: lambda name=name: open_link(name) for name in link_names()},
        "by packets": lambda: PcieTransfers(PcieLink(PRESETS["smartssd"])),
    }


@pytest.mark.parametrize("name", links())
@pytest.mark.parametrize("direction", Direction)
def test_any_link_obeys_time_and_its_bound(name, direction):
    open_one = links()[name]
    ends_ps = [open_one().transfer(0, nbytes, direction) for nbytes in (1, 256, 4096, 65_536, 1 << 20)]
    assert ends_ps == sorted(set(ends_ps))
    link = open_one()
    assert link.transfer(7_000_000, 4096, direction) == ends_ps[2] + 7_000_000
    link, total_bytes = open_one(), 0
    for _ in range(64):
        end_ps = link.transfer(0, 65_536, direction)
        total_bytes += 65_536
        assert total_bytes * 10**12 <= link.bound_bytes_per_s(direction) * end_ps
    assert total_bytes * 10**12 > 0.5 * link.bound_bytes_per_s(direction) * end_ps
    for arguments in ((-1, 64), (0, 0), (0.5, 64), (0, 1.5)):
        with pytest.raises(ValueError, match=r"is (-1|0|0.5|1.5); allowed"):
            link.transfer(*arguments, direction)


def test_unknown_link():
    with pytest.raises(ValueError, match=r"link is 'nvlink9'; allowed: pcie/smartssd, .*link/nvlink4_h100"):
        open_link("nvlink9")


@pytest.mark.parametrize("nbytes", [4096, 65_536, 1 << 20])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("name", PRESETS)
def test_pcie_rate_stays_close_to_the_packets(name, direction, nbytes):
    by_packets, by_rate = PcieTransfers(PcieLink(PRESETS[name])), PcieRate(PRESETS[name])
    exact_ps = by_packets.transfer(0, nbytes, direction)
    assert by_rate.transfer(0, nbytes, direction) == pytest.approx(exact_ps, rel=0.03)


def test_pcie_rate_refuses_a_link_that_latency_limits():
    with pytest.raises(ValueError, match="tags is 2, 1024 bytes in flight; allowed here: enough"):
        PcieRate(PcieLinkConfig(tags=2))


def test_flits_by_hand():
    assert [FLITS.wire_bytes(nbytes) for nbytes in (1, 16, 17, 64, 65, 128)] == [24, 24, 40, 72, 96, 144]
    link = FlitLink(FLITS)
    assert link.transfer(0, 64, Direction.OUT) == 72_000 + 100_000
    assert link.transfer(0, 64, Direction.OUT) == 144_000 + 100_000
    # Request 16 ns, 100 ns, 500 ns at the target, 72 ns of data, 100 ns.
    assert FlitLink(FLITS).transfer(0, 64, Direction.IN) == 788_000
    # Ten lines: the requests go out at once, the data follow each other.
    assert FlitLink(FLITS).transfer(0, 640, Direction.IN) == 716_000 + 10 * 72_000
    # Requests larger than the data they ask for: the last one decides.
    greedy = FlitLink(replace(FLITS, read_request_bytes=100))
    assert greedy.transfer(0, 640, Direction.IN) == 10 * 100_000 + 700_000 + 72_000
    assert link.bound_bytes_per_s(Direction.OUT) == 10**9 * 64 // 72


def test_reads_and_writes_share_the_outgoing_way():
    link = FlitLink(FLITS)
    link.transfer(0, 6400, Direction.OUT)
    # Behind 100 packets of 72 ns.
    assert link.transfer(0, 64, Direction.IN) == 7_200_000 + 788_000


@pytest.mark.parametrize(
    ("change", "slower"),
    [
        ({"raw_bytes_per_s": 9 * 10**8}, Direction),
        ({"packet_overhead_bytes": 16}, Direction),
        ({"one_way_latency_ps": 200_000}, Direction),
        ({"flit_bytes": 64}, Direction),
        ({"packet_payload_bytes": 32}, Direction),
        ({"target_read_latency_ps": 600_000}, [Direction.IN]),
        ({"read_request_bytes": 32}, [Direction.IN]),
    ],
)
def test_every_constant_of_a_flit_link_moves_time(change, slower):
    for direction in slower:
        before_ps = FlitLink(FLITS).transfer(0, 1000, direction)
        assert FlitLink(replace(FLITS, **change)).transfer(0, 1000, direction) > before_ps


def test_published_efficiencies():
    # wikichip.org, NVLink: 256 bytes behind one header flit are 94.12 % of the peak, 64 bytes 80 %.
    link = open_link("link/nvlink4_h100")
    assert link.bound_bytes_per_s(Direction.OUT) / 450e9 == pytest.approx(0.9412, abs=1e-4)
    assert 64 / link.config.wire_bytes(64) == 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"raw_bytes_per_s": 0}, "raw_bytes_per_s is 0"),
        ({"one_way_latency_ps": -1}, "one_way_latency_ps is -1"),
        ({"packet_payload_bytes": 40}, "packet_payload_bytes is 40; allowed: whole flits of 16 bytes"),
    ],
)
def test_impossible_flit_links_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(FLITS, **change)


def test_pipe_keeps_exact_time():
    pipe = Pipe(3)  # bytes per second
    assert pipe.send(0, 1) == 333_333_333_334
    assert pipe.send(0, 2) == 10**12
    assert pipe.hold(0, 500) == 10**12 + 500
    assert pipe.send(2 * 10**12, 3) == 3 * 10**12
    assert (pipe.nbytes, pipe.busy_ps) == (6, 2 * 10**12 + 500)
    for bad in (0, 1.0, True, 10**13 + 1):
        with pytest.raises(ValueError, match="bytes_per_s is"):
            Pipe(bad)
