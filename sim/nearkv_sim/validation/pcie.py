"""The PCIe link against the pcie-bench model, packet counts in between, and measured read concurrency."""

from __future__ import annotations

from functools import partial

from nearkv_sim.hardware.link import Direction, header_only_bytes_per_s
from nearkv_sim.hardware.pcie import PcieLink
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.validation.check import Check, within

__all__ = ["checks"]

# GB/s of the pcie-bench model (64-bit addresses, read requests of 512 bytes): (write, read) for large
# transfers with a maximum payload of 128, 256 and 512 bytes, then for 64-byte transfers with 256.
_PCIE_BENCH = {
    (3, 4): ((2.99, 3.08), (3.32, 3.37), (3.51, 3.54), (2.64, 2.77)),
    (3, 8): ((5.97, 6.13), (6.61, 6.71), (6.84, 6.90), (5.26, 5.51)),
    (3, 16): ((11.76, 12.08), (12.99, 13.18), (13.69, 13.79), (10.34, 10.83)),
    (4, 4): ((5.99, 6.15), (6.65, 6.74), (7.02, 7.08), (5.29, 5.54)),
    (4, 16): ((23.5, 24.2), (26.0, 26.4), (27.4, 27.6), (20.7, 21.7)),
    (5, 16): ((47.0, 48.3), (52.0, 52.7), (54.7, 55.2), (41.3, 43.3)),
}
_COLUMNS = ((128, 4096), (256, 4096), (512, 4096), (256, 64))  # maximum payload, bytes of a transfer
_SOURCE = "pcie-bench model (Neugebauer et al., SIGCOMM 2018), computed; upper end: headers only"
_TAGS_GB_PER_S = {4: 3.03, 8: 3.55, 64: 3.56}
_TAGS_SOURCE = "measured for nearkv with a packet-level PCIe simulator, 512-byte reads, round trip of 546 ns"
_RUN_BYTES = 1 << 20
_HIGH = 1 << 32  # first address that needs a 64-bit header


def checks() -> list[Check]:
    """All figures of the link."""
    cells = [
        _cell(generation, lanes, column, way, published)
        for (generation, lanes), row in _PCIE_BENCH.items()
        for column, cell in zip(_COLUMNS, row, strict=True)
        for way, published in zip(Direction, cell, strict=True)
    ]
    tags = [
        within(
            f"pcie/read_tags_gen3x4/{tags}",
            "GB/s",
            published,
            0.05,
            _TAGS_SOURCE,
            partial(_tags_gb_per_s, tags),
        )
        for tags, published in _TAGS_GB_PER_S.items()
    ]
    return [*cells, *tags]


def _cell(generation: int, lanes: int, column: tuple[int, int], way: Direction, published: float) -> Check:
    payload_bytes, transfer_bytes = column
    tags = 256 if generation == 3 else 768  # pcie-bench has no tags; 64-byte reads need 420 on Gen5 x16
    config = PcieLinkConfig(generation=generation, lanes=lanes, max_payload_bytes=payload_bytes, tags=tags)
    bound = header_only_bytes_per_s(config, way, min(payload_bytes, transfer_bytes)) / 1e9
    what = "write" if way is Direction.OUT else "read"
    return Check(
        f"pcie/{what}_gen{generation}x{lanes}_{transfer_bytes}B/MPS{payload_bytes}",
        "GB/s",
        published,
        published,
        bound,
        _SOURCE,
        partial(_gb_per_s, config, way, transfer_bytes),
    )


def _gb_per_s(config: PcieLinkConfig, way: Direction, transfer_bytes: int) -> float:
    """Throughput of transfers that are all ready at time 0."""
    link = PcieLink(config)
    method = link.device_write if way is Direction.OUT else link.device_read
    for offset in range(0, _RUN_BYTES, transfer_bytes):
        end_ps = method(0, _HIGH + offset, transfer_bytes)
    return _RUN_BYTES * 1000 / end_ps


def _tags_gb_per_s(tags: int) -> float:
    # 2 x 150 ns and 246 ns are the round trip.
    config = PcieLinkConfig(generation=3, lanes=4, tags=tags, root_complex_read_latency_ps=246_000)
    return _gb_per_s(config, Direction.IN, 512)
