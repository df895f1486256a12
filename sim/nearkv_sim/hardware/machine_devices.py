"""Memories and links of a machine as stages of a transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial

from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.energy import transfer_energy
from nearkv_sim.hardware.dram.stream import scan
from nearkv_sim.hardware.link import Direction
from nearkv_sim.hardware.link_flits import FlitLink, FlitLinkConfig
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.machine_drives import DriveStage, PeerStage
from nearkv_sim.hardware.machine_stage import REMEMBERED_TRANSFERS, RateStage, Stage, continued_ps
from nearkv_sim.hardware.pcie import PRESETS, PcieLink, PcieLinkConfig
from nearkv_sim.hardware.pcie_fabric import PeerConfig
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.direct_io import HostIoConfig
from nearkv_sim.hardware.wear import DriveConfig

# Packets up to here are timed one by one; a test compares the continuation at 8 MiB.
PACKET_BY_PACKET_BYTES = 1 << 20
ENERGY_SCAN_BYTES = 1 << 20  # whole rows of every bank
_HOST_BUFFER_ADDRESS = 1 << 32  # above 4 GiB: requests carry 64-bit addresses


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """A memory: simulated DRAM devices side by side, or what a data sheet says. Exactly one, or ValueError.

    Attributes:
        capacity_bytes: of all of it.
        latency_ps: of one idle access, beside the DRAM's own where that is simulated.
        dram, devices: profile of kind dram, and how many work side by side.
        bandwidth_bytes_per_s, access_pj_per_byte: of the data sheet, each way.

    """

    capacity_bytes: int
    latency_ps: int
    dram: str = ""
    devices: int = 1
    bandwidth_bytes_per_s: int = 0
    access_pj_per_byte: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("capacity_bytes", "latency_ps", "devices"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: above 0")
        sheet = (self.bandwidth_bytes_per_s > 0, self.access_pj_per_byte > 0)
        if any(sheet) != all(sheet) or bool(self.dram) == any(sheet):
            raise ValueError(
                f"dram is {self.dram!r} with bandwidth_bytes_per_s {self.bandwidth_bytes_per_s} and"
                f" access_pj_per_byte {self.access_pj_per_byte}; allowed: a DRAM, or both figures"
            )
        if self.dram:
            dram_profile(self.dram)

    @property
    def origin(self) -> str:
        """Whether its times are simulated or a data sheet's."""
        return "DRAM commands" if self.dram else "data sheet"

    @property
    def pj_per_byte(self) -> float:
        """Energy of a byte read or written; simulated, that of a long scan's commands."""
        if not self.dram:
            return self.access_pj_per_byte
        dram = dram_profile(self.dram).config
        counters = scan(dram, ENERGY_SCAN_BYTES).counters
        return transfer_energy(dram, counters).total_pj / ENERGY_SCAN_BYTES

    @property
    def peak_bytes_per_s(self) -> int:
        """Rate of the interface."""
        if not self.dram:
            return self.bandwidth_bytes_per_s
        return int(self.devices * dram_profile(self.dram).config.peak_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class PathConfig:
    """A link of one of three kinds: PCIe packet by packet, flits, or a drive's peer.

    Attributes:
        pj_per_byte: energy of a byte carried.
        pcie_preset: name in `pcie_config.PRESETS`.
        flits: profile of kind link: NVLink, CXL.
        peer, host_io: profiles of these kinds: the drive at the outer end moves data to and from the memory
            at the inner end below one switch, in synchronous calls of one thread.

    ValueError unless exactly one kind is given.

    """

    pj_per_byte: float
    pcie_preset: str = ""
    flits: str = ""
    peer: str = ""
    host_io: str = ""

    def __post_init__(self) -> None:
        """Refuse a link that is of no kind or of several."""
        kinds = [name for name in ("pcie_preset", "flits", "peer") if getattr(self, name)]
        if len(kinds) != 1 or bool(self.peer) != bool(self.host_io):
            raise ValueError(
                f"kinds of link are {', '.join(kinds) or 'none'} with host_io {self.host_io!r}; allowed: one"
                " of pcie_preset, flits, and peer with host_io"
            )
        if self.pcie_preset and self.pcie_preset not in PRESETS:
            raise ValueError(f"pcie_preset is {self.pcie_preset!r}; allowed: {', '.join(PRESETS)}")


@dataclass(frozen=True)
class DramStage(Stage):
    """Consecutive bytes of DRAM devices side by side, rows opened ahead, refreshes included.

    Attributes:
        config: the memory.
        write: or read.

    """

    config: MemoryConfig = field(repr=False)
    write: bool

    @property
    def bound_bytes_per_s(self) -> int:
        """All interfaces."""
        return self.config.peak_bytes_per_s

    def _time_ps(self, nbytes: int) -> int:
        share = -(-nbytes // self.config.devices)
        dram = dram_profile(self.config.dram).config
        return self.config.latency_ps + scan(dram, share, write=self.write).time_ps


@dataclass(frozen=True)
class FlitStage(Stage):
    """NVLink or CXL; the outer device writes towards the inner side and reads from it.

    Attributes:
        config: the link.
        outward: towards the outer device: a read.

    """

    config: FlitLinkConfig = field(repr=False)
    outward: bool

    @property
    def bound_bytes_per_s(self) -> int:
        """Full packets."""
        return FlitLink(self.config).bound_bytes_per_s(self._direction)

    @property
    def _direction(self) -> Direction:
        return Direction.IN if self.outward else Direction.OUT

    def _time_ps(self, nbytes: int) -> int:
        return FlitLink(self.config).transfer(0, nbytes, self._direction)


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


@lru_cache(maxsize=REMEMBERED_TRANSFERS)
def _packets_ps(config: PcieLinkConfig, nbytes: int, *, outward: bool) -> int:
    link = PcieLink(config)
    move = link.device_read if outward else link.device_write
    return move(0, _HOST_BUFFER_ADDRESS, nbytes)


def memory_stage(name: str, count: int, config: MemoryConfig | DriveConfig, *, write: bool) -> Stage:
    """Reading or writing a tier."""
    if isinstance(config, DriveConfig):
        return DriveStage(name, count, config.pj_per_byte, config.config, write)
    if config.dram:
        return DramStage(name, count, config.pj_per_byte, config, write)
    return RateStage(name, count, config.pj_per_byte, config.latency_ps, config.bandwidth_bytes_per_s)


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
    flits: FlitLinkConfig = named_profile("link", config.flits, FlitLinkConfig).config
    return FlitStage(name, count, config.pj_per_byte, flits, outward)
