"""Memories and links of a machine as stages of a transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial

from nearkv_sim.hardware.machine_drives import DriveStage, PeerStage
from nearkv_sim.hardware.machine_stage import PS_PER_S, RateStage, Stage, continued_ps
from nearkv_sim.hardware.pcie import PRESETS, PcieLink, PcieLinkConfig
from nearkv_sim.hardware.pcie_fabric import PeerConfig
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.direct_io import HostIoConfig
from nearkv_sim.hardware.wear import DriveConfig

# Packets up to here are timed one by one; a test compares the continuation at 8 MiB.
PACKET_BY_PACKET_BYTES = 1 << 20
_HOST_BUFFER_ADDRESS = 1 << 32  # above 4 GiB: requests carry 64-bit addresses


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """A memory as its data sheet describes it. ValueError for a value below what makes sense.

    Attributes:
        capacity_bytes: of one device.
        read_bandwidth_bytes_per_s, write_bandwidth_bytes_per_s: at its pins.
        latency_ps: of one idle access.
        pj_per_byte: energy of a byte read or written.

    """

    capacity_bytes: int
    read_bandwidth_bytes_per_s: int
    write_bandwidth_bytes_per_s: int
    latency_ps: int
    pj_per_byte: float

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name} is {value!r}; allowed: above 0")


@dataclass(frozen=True, kw_only=True)
class PathConfig:
    """A link of one of three kinds: PCIe packet by packet, latency and bandwidth, or a drive's peer.

    Attributes:
        pj_per_byte: energy of a byte carried.
        pcie_preset: name in `pcie_config.PRESETS`.
        bandwidth_bytes_per_s, latency_ps: each way.
        peer, host_io: profiles of these kinds: the drive at the outer end moves data to and from the memory
            at the inner end below one switch, in synchronous calls of one thread.

    ValueError unless exactly one kind is given.

    """

    pj_per_byte: float
    pcie_preset: str = ""
    bandwidth_bytes_per_s: int = 0
    latency_ps: int = 0
    peer: str = ""
    host_io: str = ""

    def __post_init__(self) -> None:
        """Refuse a link that is of no kind or of several."""
        kinds = [name for name in ("pcie_preset", "bandwidth_bytes_per_s", "peer") if getattr(self, name)]
        if len(kinds) != 1 or bool(self.peer) != bool(self.host_io):
            raise ValueError(
                f"kinds of link are {', '.join(kinds) or 'none'} with host_io {self.host_io!r}; allowed: one"
                " of pcie_preset, bandwidth_bytes_per_s, and peer with host_io"
            )
        if self.pcie_preset and self.pcie_preset not in PRESETS:
            raise ValueError(f"pcie_preset is {self.pcie_preset!r}; allowed: {', '.join(PRESETS)}")


@dataclass(frozen=True)
class PcieStage(Stage):
    """A PCIe link whose outer device moves the data: it writes towards the inner side and reads from it."""

    config: PcieLinkConfig = field(repr=False)
    outward: bool

    @property
    def bound_bytes_per_s(self) -> int:
        """Payload rate of a wire that carries nothing but payload."""
        return int(PS_PER_S / self.config.byte_time_ps)

    def _time_ps(self, nbytes: int) -> int:
        walk = partial(_packets_ps, self.config, outward=self.outward)
        return continued_ps(walk, nbytes, PACKET_BY_PACKET_BYTES)


@cache
def _packets_ps(config: PcieLinkConfig, nbytes: int, *, outward: bool) -> int:
    link = PcieLink(config)
    move = link.device_read if outward else link.device_write
    return move(0, _HOST_BUFFER_ADDRESS, nbytes)


def memory_stage(name: str, count: int, config: MemoryConfig | DriveConfig, *, write: bool) -> Stage:
    """Reading or writing a tier."""
    if isinstance(config, DriveConfig):
        return DriveStage(name, count, config.pj_per_byte, config.config, write)
    bandwidth = config.write_bandwidth_bytes_per_s if write else config.read_bandwidth_bytes_per_s
    return RateStage(name, count, config.pj_per_byte, config.latency_ps, bandwidth)


def path_stage(
    name: str, count: int, config: PathConfig, *, outward: bool, drive: DriveConfig | None = None
) -> Stage:
    """A link in one direction; a peer link needs the drive at its outer end, or ValueError."""
    if config.pcie_preset:
        return PcieStage(name, count, config.pj_per_byte, PRESETS[config.pcie_preset], outward)
    if config.peer:
        if drive is None:
            raise ValueError(f"outer end of {name} is no drive; allowed for a peer link: a drive")
        peer = named_profile("peer", config.peer, PeerConfig).config
        host_io = named_profile("host_io", config.host_io, HostIoConfig).config
        return PeerStage(name, count, config.pj_per_byte, drive.config, outward, peer, host_io)
    return RateStage(name, count, config.pj_per_byte, config.latency_ps, config.bandwidth_bytes_per_s)
