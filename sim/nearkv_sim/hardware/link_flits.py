"""NVLink and CXL.mem: links that carry bytes in packets of flits."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nearkv_sim.hardware.link import Direction
from nearkv_sim.hardware.link_pipe import PS_PER_S, Pipe
from nearkv_sim.hardware.pcie_config import require_integer

__all__ = ["FlitLink", "FlitLinkConfig"]


@dataclass(frozen=True, kw_only=True)
class FlitLinkConfig:
    """A link of flits. Raises ValueError for a value outside its range.

    Attributes:
        raw_bytes_per_s: of one direction, line code and flit CRC already taken off.
        packet_payload_bytes: most payload in a packet.
        packet_overhead_bytes: header that every packet carries.
        flit_bytes: payload is padded to whole flits.
        read_request_bytes: sent for every packet that is read.
        one_way_latency_ps: last byte sent to visible at the far side.
        target_read_latency_ps: request arrived to first data ready: the far memory and its controller.

    """

    raw_bytes_per_s: int
    packet_payload_bytes: int
    packet_overhead_bytes: int
    flit_bytes: int
    read_request_bytes: int
    one_way_latency_ps: int
    target_read_latency_ps: int

    def __post_init__(self) -> None:
        """Refuse what no link can be."""
        for field in fields(self):
            limit = PS_PER_S if field.name.endswith("_ps") else 10**13
            low = 1 if field.name in ("raw_bytes_per_s", "packet_payload_bytes", "flit_bytes") else 0
            require_integer(field.name, getattr(self, field.name), low, limit)
        if self.packet_payload_bytes % self.flit_bytes:
            raise ValueError(
                f"packet_payload_bytes is {self.packet_payload_bytes}; allowed: whole flits of"
                f" {self.flit_bytes} bytes"
            )

    def wire_bytes(self, nbytes: int) -> int:
        """What `nbytes` of payload take on the link."""
        packets = -(-nbytes // self.packet_payload_bytes)
        padded_bytes = -(-nbytes // self.flit_bytes) * self.flit_bytes
        return packets * self.packet_overhead_bytes + padded_bytes


class FlitLink:
    """Timing: a write takes its packets' time on the outgoing pipe, then one way. A read first sends its
    requests on the outgoing pipe; the first goes one way and waits for the target; then its packets take the
    incoming pipe's time and one way. Enough requests are under way that latency does not limit long reads.
    """

    def __init__(self, config: FlitLinkConfig) -> None:
        """Start at time 0 with both directions idle."""
        self.config = config
        self._pipes = {way: Pipe(config.raw_bytes_per_s) for way in Direction}

    def transfer(self, start_ps: int, nbytes: int, direction: Direction) -> int:
        """Start a transfer; returns when its last byte has arrived, in ps.

        Raises ValueError for a negative or fractional start and for fewer than 1 byte.
        """
        require_integer("nbytes", nbytes, 1, 2**50)
        config = self.config
        if direction is Direction.OUT:
            return (
                self._pipes[Direction.OUT].send(start_ps, config.wire_bytes(nbytes))
                + config.one_way_latency_ps
            )
        packets = -(-nbytes // config.packet_payload_bytes)
        requests_ps = self._pipes[Direction.OUT].send(start_ps, packets * config.read_request_bytes)
        first_ps = (
            requests_ps - (packets - 1) * config.read_request_bytes * PS_PER_S // config.raw_bytes_per_s
        )
        round_trip_ps = 2 * config.one_way_latency_ps + config.target_read_latency_ps
        data_ps = self._pipes[Direction.IN].send(first_ps, config.wire_bytes(nbytes))
        # The last request bounds the end as well, where requests are slower than what they ask for.
        last_ps = requests_ps + config.wire_bytes(min(nbytes, config.packet_payload_bytes)) * PS_PER_S // (
            config.raw_bytes_per_s
        )
        return max(data_ps, last_ps) + round_trip_ps

    def bound_bytes_per_s(self, direction: Direction) -> int:
        """Payload rate with full packets; both directions have it."""
        config = self.config
        packet_bytes = config.wire_bytes(config.packet_payload_bytes)
        return self._pipes[direction].bytes_per_s * config.packet_payload_bytes // packet_bytes
