"""One interface for every link: when does a transfer that starts now end?

`Link.transfer(start_ps, nbytes, direction)` is all that a machine or a drive asks. It is answered by

* `PcieTransfers`: packet by packet (`nearkv_sim.hardware.pcie`), and `PcieRate`, its steady state;
* `nearkv_sim.hardware.link_flits.FlitLink`: NVLink and CXL.mem;
* `nearkv_sim.hardware.pcie_fabric.PeerLink`: device to device below a PCIe switch.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from nearkv_sim.hardware.link_pipe import PS_PER_S, Pipe
from nearkv_sim.hardware.pcie import HEADER_32_BIT_BYTES, HEADER_64_BIT_BYTES, TLP_FRAMING_BYTES, PcieLink
from nearkv_sim.hardware.pcie_config import PcieLinkConfig, require_integer

__all__ = ["Direction", "Link", "PcieRate", "PcieTransfers", "header_only_bytes_per_s"]

_BUFFER_ADDRESS = 1 << 32  # host buffers lie above 4 GiB: requests carry 64-bit addresses


class Direction(Enum):
    """Which way payload flows, seen from the side that moves it (a device's DMA engine, a GPU)."""

    OUT = "out"  # it writes: to the host, to the peer, to remote memory
    IN = "in"  # it reads


class Link(Protocol):
    """Anything that carries bytes. Calls are served in call order; issue them in order of their starts."""

    def transfer(self, start_ps: int, nbytes: int, direction: Direction) -> int:
        """Start a transfer at `start_ps`; returns when its last byte has arrived, in ps.

        Raises ValueError for a negative or fractional start and for fewer than 1 byte.
        """

    def bound_bytes_per_s(self, direction: Direction) -> int:
        """Payload rate that no transfer can exceed: headers counted, everything else ideal."""


def header_only_bytes_per_s(config: PcieLinkConfig, direction: Direction, payload_bytes: int) -> int:
    """Payload rate with packets of one size and nothing on the wire but them, rounded down."""
    header_bytes = HEADER_64_BIT_BYTES if direction is Direction.OUT else HEADER_32_BIT_BYTES
    packet_ps = (payload_bytes + TLP_FRAMING_BYTES + header_bytes) * config.byte_time_ps
    return int(payload_bytes * PS_PER_S / packet_ps)


class PcieTransfers:
    """A PCIe device's DMA as a `Link`: every TLP is timed, about a million a CPU-second.

    Transfers use a window of the host's memory that starts on a 4 KiB boundary: none is split by alignment.
    """

    def __init__(self, link: PcieLink) -> None:
        """Share `link` with whoever else uses it."""
        self.link = link

    def transfer(self, start_ps: int, nbytes: int, direction: Direction) -> int:
        """DMA write (OUT) or read (IN) of the host's memory."""
        method = self.link.device_write if direction is Direction.OUT else self.link.device_read
        return method(start_ps, _BUFFER_ADDRESS, nbytes)

    def bound_bytes_per_s(self, direction: Direction) -> int:
        """Header-only bound of the link."""
        config = self.link.config
        return header_only_bytes_per_s(config, direction, config.max_payload_bytes)


class PcieRate:
    """The same DMA in one step per transfer: for drives that move gigabytes.

    Formula: full packets at the header-only rate of the link, then the latency of a posted write, or of a
    read round trip before the data. DLLPs and a short last packet are left out: from 4 KiB on, the difference
    to `PcieTransfers` is below 3 %.

    Args:
        config: the link; with enough tags that latency does not limit reads, which is checked.

    """

    def __init__(self, config: PcieLinkConfig) -> None:
        """Start at time 0 with idle wires."""
        self.config = config
        payload_bytes = config.max_payload_bytes
        self._pipes = {way: Pipe(header_only_bytes_per_s(config, way, payload_bytes)) for way in Direction}
        round_trip_ps = 2 * config.path_latency_ps + config.root_complex_read_latency_ps
        window_bytes = config.tags * config.max_read_request_bytes
        if window_bytes * PS_PER_S < self.bound_bytes_per_s(Direction.IN) * round_trip_ps:
            raise ValueError(
                f"tags is {config.tags}, {window_bytes} bytes in flight; allowed here: enough for a round"
                f" trip of {round_trip_ps} ps"
            )
        self._latencies_ps = {Direction.OUT: config.path_latency_ps, Direction.IN: round_trip_ps}

    def transfer(self, start_ps: int, nbytes: int, direction: Direction) -> int:
        """DMA write (OUT) or read (IN) of the host's memory."""
        require_integer("nbytes", nbytes, 1, 2**63 - 1)
        return self._pipes[direction].send(start_ps, nbytes) + self._latencies_ps[direction]

    def latency_ps(self, direction: Direction) -> int:
        """Part of every transfer that does not depend on its size."""
        return self._latencies_ps[direction]

    def bound_bytes_per_s(self, direction: Direction) -> int:
        """Header-only bound of the link."""
        return self._pipes[direction].bytes_per_s
