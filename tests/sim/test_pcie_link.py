"""The PCIe link model against hand arithmetic, published figures and independent packet counts."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from nearkv_sim.hardware.pcie import PRESETS, PcieLink, PcieLinkConfig

HIGH = 1 << 32  # first address that needs a 64-bit header
GEN3_X4 = PcieLinkConfig(generation=3, lanes=4)

# GB/s of the pcie-bench model (Neugebauer et al., SIGCOMM 2018; 64-bit addresses, read requests of 512 bytes,
# completions as long as the payload allows): (write, read) for large transfers with a maximum payload of 128,
# 256 and 512 bytes, then for 64-byte transfers with 256.
PCIE_BENCH_GB_PER_S = {
    (3, 4): ((2.99, 3.08), (3.32, 3.37), (3.51, 3.54), (2.64, 2.77)),
    (3, 8): ((5.97, 6.13), (6.61, 6.71), (6.84, 6.90), (5.26, 5.51)),
    (3, 16): ((11.76, 12.08), (12.99, 13.18), (13.69, 13.79), (10.34, 10.83)),
    (4, 4): ((5.99, 6.15), (6.65, 6.74), (7.02, 7.08), (5.29, 5.54)),
    (4, 16): ((23.5, 24.2), (26.0, 26.4), (27.4, 27.6), (20.7, 21.7)),
    (5, 16): ((47.0, 48.3), (52.0, 52.7), (54.7, 55.2), (41.3, 43.3)),
}
COLUMNS = ((128, 4 << 20), (256, 4 << 20), (512, 4 << 20), (256, 64))  # payload limit, bytes per transfer


def gb_per_s(config: PcieLinkConfig, method: str, transfer_bytes: int, total_bytes: int) -> float:
    """Throughput of transfers that are all ready at time 0."""
    link = PcieLink(config)
    for offset in range(0, total_bytes, transfer_bytes):
        end_ps = getattr(link, method)(0, HIGH + offset, transfer_bytes)
    return total_bytes * 1000 / end_ps


def test_one_write_by_hand():
    # 8 bits / (4 lanes at 8 GT/s) = 250 ps, times 130/128, times 376/375 = 3055/12 ps per byte.
    assert GEN3_X4.byte_time_ps == Fraction(3055, 12)
    assert PcieLinkConfig(generation=1, lanes=1).byte_time_ps == 4000 * Fraction(1542, 1538)
    link = PcieLink(GEN3_X4)
    # 8 framing + 16 header + 64 payload = 88 bytes = 22403 1/3 ps, and 150 ns on the way.
    assert link.device_write(0, HIGH, 64) == 172_404
    assert vars(link.upstream) == {"tlps": 1, "payload_bytes": 64, "dllps": 0, "wire_bytes": 88}
    assert link.downstream.wire_bytes == 0
    # The next packet starts at the exact fraction, not at the rounded time: 44806 2/3.
    assert link.device_write(0, HIGH, 64) == 194_807
    # Below 4 GiB the header is four bytes shorter: 84 bytes = 21385 ps.
    assert PcieLink(GEN3_X4).device_write(1000, 0, 64) == 172_385
    mixed = PcieLink(GEN3_X4)
    mixed.device_write(0, HIGH - 256, 512)
    assert mixed.upstream.wire_bytes == 512 + 20 + 24


def test_one_read_load_and_interrupt_by_hand():
    link = PcieLink(GEN3_X4)
    # Request 24 bytes = 6110 ps, 150 ns, 300 ns, completion 84 bytes = 21385 ps, 150 ns.
    assert link.device_read(0, HIGH, 64) == 627_495
    # The request's Ack and UpdateFC, 16 bytes, have left at 374 ns, before the completion.
    assert (link.upstream.wire_bytes, link.downstream.wire_bytes) == (24, 16 + 84)
    # Request 24 bytes down, 600 ns in the device, completion 24 bytes up: twice 6110 + 150000.
    assert PcieLink(GEN3_X4).mmio_read(0, HIGH, 4) == 912_220
    assert PcieLink(GEN3_X4).mmio_write(0, HIGH, 4) == 157_129  # 28 bytes = 7128 1/3 ps
    # 8 + 12 + 4 bytes, 150 ns, 3 us; behind a write of 88 bytes = 22403 1/3 ps.
    assert PcieLink(GEN3_X4).interrupt(0) == 3_156_110
    link = PcieLink(GEN3_X4)
    link.device_write(0, HIGH, 64)
    assert link.interrupt(0) == 3_178_514


def test_ack_and_update_delay_the_opposite_direction():
    link = PcieLink(GEN3_X4)
    link.device_write(0, HIGH, 64)  # arrives at 172403 1/3
    # Window of (256 + 28) * 1.4 / 4 + 115 = 214 symbols of 4 bytes = 217923 1/3 ps: due at 390326 2/3.
    assert GEN3_X4.dllp_interval_symbols == 214
    # 16 bytes = 4073 1/3 ps hold the wire until 394400; then 28 bytes and 150 ns.
    assert link.mmio_write(390_327, HIGH, 4) == 551_529
    assert vars(link.downstream) == {"tlps": 1, "payload_bytes": 4, "dllps": 2, "wire_bytes": 44}
    late = PcieLink(GEN3_X4)
    late.device_write(0, HIGH, 1 << 20)  # hundreds of pairs, all in gaps: the first packet meets none
    assert late.mmio_write(1000, HIGH, 4) == 158_129
    busy = PcieLink(GEN3_X4)
    busy.device_write(0, HIGH, 64)
    busy.mmio_write(390_000, HIGH, 64)  # on the wire until 412403 1/3, so they wait
    busy.device_write(400_000, HIGH, 64)
    assert busy.mmio_write(410_000, HIGH, 4) == 573_605  # 412403 1/3 + 4073 1/3 + 7128 1/3 + 150000


@pytest.mark.parametrize("row", ["1 1 128 237", "1 8 512 86", "2 2 1024 596", "3 8 256 203", "5 16 4096 630"])
def test_dllp_window_equals_the_base_specification_tables(row):
    generation, lanes, payload_bytes, symbols = map(int, row.split())
    config = PcieLinkConfig(generation=generation, lanes=lanes, max_payload_bytes=payload_bytes)
    assert config.dllp_interval_symbols == symbols


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("link", PCIE_BENCH_GB_PER_S)
def test_bandwidth_lies_between_pcie_bench_and_the_header_only_bound(link, column):
    generation, lanes = link
    payload_bytes, transfer_bytes = COLUMNS[column]
    tags = 256 if generation == 3 else 768  # pcie-bench has no tags; 64-byte reads need 420 on Gen5 x16
    config = PcieLinkConfig(generation=generation, lanes=lanes, max_payload_bytes=payload_bytes, tags=tags)
    raw_gb_per_s = {3: 8, 4: 16, 5: 32}[generation] * lanes / 8 * 128 / 130
    packet_bytes = min(payload_bytes, transfer_bytes)
    published = PCIE_BENCH_GB_PER_S[link][column]
    for method, floor, overhead_bytes in zip(
        ("device_write", "device_read"), published, (24, 20), strict=True
    ):
        ours = gb_per_s(config, method, transfer_bytes, max(transfer_bytes, 1 << 20))
        assert floor <= ours <= raw_gb_per_s * packet_bytes / (packet_bytes + overhead_bytes), method


@pytest.mark.parametrize(("tags", "published_gb_per_s"), [(4, 3.03), (8, 3.55), (64, 3.56)])
@pytest.mark.parametrize("transfer_bytes", [512, 1 << 22])
def test_read_bandwidth_grows_with_tags_as_measured(tags, published_gb_per_s, transfer_bytes):
    # Measured with 512-byte reads on a packet-level simulator of Gen3 x4 with a round trip of 546 ns.
    config = replace(GEN3_X4, tags=tags, root_complex_read_latency_ps=246_000)
    ours = gb_per_s(config, "device_read", transfer_bytes, 1 << 22)
    assert ours == pytest.approx(published_gb_per_s, rel=0.05)


def test_both_directions_carry_data_at_once():
    link, total_bytes, piece_bytes = PcieLink(GEN3_X4), 1 << 21, 4096
    for offset in range(0, total_bytes, piece_bytes):
        read_ps = link.device_read(0, HIGH + offset, piece_bytes)
        write_ps = link.device_write(0, HIGH + offset, piece_bytes)
    # pcie-bench for alternating reads and writes: both at .92263 * 3.9385 * 256 / (256 + 24 + 12) GB/s.
    assert 3.185 < total_bytes * 1000 / max(read_ps, write_ps) < 3.453


def expected_tlps(address: int, nbytes: int, limit_bytes: int) -> int:
    """Requests of a transfer: per page touched, its doublewords over the limit, rounded up."""
    end, count = address + nbytes, 0
    for page in range(address // 4096, (end - 1) // 4096 + 1):
        low, high = max(address, page * 4096), min(end, (page + 1) * 4096)
        count += -(-(-(-high // 4) - low // 4) // (limit_bytes // 4))
    return count


def expected_completions(address: int, nbytes: int, payload_bytes: int, boundary_bytes: int) -> int:
    """Completions of one request: one, or the largest first one to a boundary and full ones after it."""
    first_end = (address // 4 * 4 + payload_bytes) // boundary_bytes * boundary_bytes
    return 1 + max(0, -(-(address + nbytes - first_end) // payload_bytes))


def test_packet_counts_and_bytes_of_unaligned_transfers():
    rng = random.Random(7)
    edges = [0, 1, 3, 4, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 4092, 4095]
    cases = [(edge, nbytes) for edge in edges for nbytes in (1, 2, 5, 64, 128, 255, 256, 257, 4096, 4097)]
    cases += [(rng.randrange(1 << 14), rng.randrange(1, 20_000)) for _ in range(200)]
    for address, nbytes in cases:
        payload_bytes, request_bytes = rng.choice([128, 256, 512]), rng.choice([128, 512, 4096])
        boundary_bytes = rng.choice([64, 128])
        splits = {"max_payload_bytes": payload_bytes, "max_read_request_bytes": request_bytes}
        config = PcieLinkConfig(read_completion_boundary_bytes=boundary_bytes, **splits)
        link = PcieLink(config)
        link.device_write(0, HIGH + address, nbytes)
        counters = link.upstream
        assert counters.tlps == expected_tlps(address, nbytes, payload_bytes)
        assert counters.payload_bytes == nbytes
        # Packets that meet within a doubleword would both carry it; none do, so only the ends are padded.
        padded_bytes = -(-(address + nbytes) // 4) * 4 - address // 4 * 4
        assert counters.wire_bytes == padded_bytes + 24 * counters.tlps

        link = PcieLink(config)
        link.device_read(0, HIGH + address, nbytes)
        assert link.upstream.tlps == expected_tlps(address, nbytes, request_bytes)
        assert link.downstream.payload_bytes == nbytes
        if link.upstream.tlps == 1:
            expected = expected_completions(address, nbytes, payload_bytes, boundary_bytes)
            assert link.downstream.tlps == expected


@pytest.mark.parametrize("method", ["device_write", "device_read"])
def test_time_moves_when_work_does(method):
    def end_ps(config: PcieLinkConfig, nbytes: int = 100_000) -> int:
        return getattr(PcieLink(config), method)(0, HIGH, nbytes)

    ends_ps = [end_ps(GEN3_X4, nbytes) for nbytes in range(4, 6000, 4)]
    assert ends_ps == sorted(set(ends_ps))
    by_speed = [end_ps(replace(GEN3_X4, generation=generation)) for generation in (5, 4, 3, 2, 1)]
    by_width = [end_ps(replace(GEN3_X4, lanes=lanes)) for lanes in (16, 8, 4, 2, 1)]
    by_cap = [end_ps(replace(GEN3_X4, link_cap_percent=percent)) for percent in (100, 99, 70, 1)]
    by_latency = [end_ps(replace(GEN3_X4, one_way_latency_ps=latency)) for latency in (0, 1, 150_000, 10**6)]
    for series in (by_speed, by_width, by_cap, by_latency):
        assert series == sorted(set(series))
    full_ps, capped_ps = end_ps(GEN3_X4, 1 << 22), end_ps(replace(GEN3_X4, link_cap_percent=70), 1 << 22)
    assert full_ps / capped_ps == pytest.approx(0.7, rel=1e-3)


@pytest.mark.parametrize(
    ("field", "method", "arguments"),
    [
        ("root_complex_read_latency_ps", "device_read", (0, HIGH, 64)),
        ("mmio_turnaround_latency_ps", "mmio_read", (0, HIGH, 4)),
        ("interrupt_latency_ps", "interrupt", (0,)),
    ],
)
def test_each_latency_is_added_once(field, method, arguments):
    slower = replace(GEN3_X4, **{field: getattr(GEN3_X4, field) + 777})
    before_ps, after_ps = (getattr(PcieLink(config), method)(*arguments) for config in (GEN3_X4, slower))
    assert after_ps - before_ps == 777


def test_same_calls_give_same_times_and_counters():
    def run() -> tuple[list[int], dict[str, int], dict[str, int]]:
        link, rng = PcieLink(PRESETS["smartssd"]), random.Random(3)
        methods = (link.device_read, link.device_write)
        calls = [(1000 * index, rng.randrange(1 << 40), rng.randrange(1, 9000)) for index in range(300)]
        return [rng.choice(methods)(*call) for call in calls], vars(link.upstream), vars(link.downstream)

    assert run() == run()


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("generation", 6, "1, 2, 3, 4, 5"),
        ("lanes", 3, "1, 2, 4, 8, 16"),
        ("lanes", True, "1, 2, 4, 8, 16"),
        ("max_payload_bytes", 64, "128, 256"),
        ("max_read_request_bytes", 8192, "128, 256"),
        ("read_completion_boundary_bytes", 256, "64, 128"),
        ("tags", 0, "from 1 to 256"),
        ("tags", 768, "from 1 to 256"),
        ("one_way_latency_ps", -1, "from 0"),
        ("one_way_latency_ps", 150e3, "an integer"),
        ("link_cap_percent", 0, "from 1 to 100"),
        ("link_cap_percent", 0.7, "an integer"),
    ],
)
def test_impossible_links_are_refused(field, value, allowed):
    with pytest.raises(ValueError, match=rf"{field} is {value}; allowed is .*{allowed}"):
        replace(GEN3_X4, **{field: value})


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("device_read", (0, 0, 0), "nbytes is 0; allowed is an integer from 1"),
        ("mmio_write", (0, 0, 0), "nbytes is 0"),
        ("device_write", (-1, 0, 4), "start_ps is -1"),
        ("device_write", (0.5, 0, 4), "start_ps is 0.5"),
        ("device_read", (0, -4, 4), "address is -4"),
        ("device_read", (0, 2**64 - 4, 8), "nbytes is 8; allowed is an integer from 1 to 4"),
        ("mmio_read", (0, 60, 8), "nbytes is 8 at 0x3c; allowed is 1 to 4"),
        ("interrupt", (-5,), "start_ps is -5"),
    ],
)
def test_impossible_transfers_are_refused_and_change_nothing(method, arguments, message):
    link = PcieLink(GEN3_X4)
    with pytest.raises(ValueError, match=message):
        getattr(link, method)(*arguments)
    assert (link.upstream.tlps, link.downstream.tlps) == (0, 0)
    assert link.device_write(0, HIGH, 64) == 172_404
