"""Peer-to-peer over PCIe: one device moves data to and from another below the same switch."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_sim.hardware.link import Direction, PcieRate
from nearkv_sim.hardware.link_pipe import Pipe
from nearkv_sim.hardware.pcie_config import PcieLinkConfig, require_integer

__all__ = ["PeerConfig", "PeerLink"]


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    """Two devices below one switch. Raises ValueError for a value outside its range.

    Attributes:
        generation, lanes: of the slower of the two links.
        max_payload_bytes: the smaller of the two devices'.
        one_way_latency_ps: of either link, as in `PcieLinkConfig`.
        switch_hop_ps: first byte in to first byte out of the switch.
        target_read_latency_ps: a read has reached the target until its first completion is ready.
        target_write_bytes_per_s, target_read_bytes_per_s: what the target's memory port takes and gives.

    """

    generation: int
    lanes: int
    max_payload_bytes: int
    one_way_latency_ps: int
    switch_hop_ps: int
    target_read_latency_ps: int
    target_write_bytes_per_s: int
    target_read_bytes_per_s: int

    def __post_init__(self) -> None:
        """Refuse what no pair can be."""
        require_integer("switch_hop_ps", self.switch_hop_ps, 0, 10**12)
        require_integer("target_write_bytes_per_s", self.target_write_bytes_per_s, 1, 10**13)
        require_integer("target_read_bytes_per_s", self.target_read_bytes_per_s, 1, 10**13)
        self.link_config()

    def link_config(self) -> PcieLinkConfig:
        """Both links and the switch as one link to a root complex that is the target."""
        return PcieLinkConfig(
            generation=self.generation,
            lanes=self.lanes,
            max_payload_bytes=self.max_payload_bytes,
            one_way_latency_ps=2 * self.one_way_latency_ps,
            switch_hops=1,
            switch_hop_ps=self.switch_hop_ps,
            root_complex_read_latency_ps=self.target_read_latency_ps,
        )


class PeerLink:
    """Transfers of the device that initiates them: OUT writes the target's memory, IN reads it.

    Formula: the slower of the link (`PcieRate`) and the target's memory port, plus the way through both links
    and the switch. The two directions do not disturb each other.
    """

    def __init__(self, config: PeerConfig) -> None:
        """Start at time 0 with idle wires."""
        self.config = config
        self._link = PcieRate(config.link_config())
        self._ports = {
            Direction.OUT: Pipe(config.target_write_bytes_per_s),
            Direction.IN: Pipe(config.target_read_bytes_per_s),
        }

    def transfer(self, start_ps: int, nbytes: int, direction: Direction) -> int:
        """Start a transfer; returns when its last byte has arrived, in ps."""
        arrival_ps = self._link.transfer(start_ps, nbytes, direction)
        latency_ps = self._link.latency_ps(direction)
        return max(arrival_ps, self._ports[direction].send(start_ps, nbytes) + latency_ps)

    def bound_bytes_per_s(self, direction: Direction) -> int:
        """The slower of link and memory port."""
        return min(self._link.bound_bytes_per_s(direction), self._ports[direction].bytes_per_s)
