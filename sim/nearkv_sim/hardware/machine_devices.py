"""Stages of a transfer: memories, drives and links as functions from bytes to time.

A stage consists of `count` equal devices that share a transfer evenly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache

from nearkv_sim.hardware.pcie import PRESETS, PcieLink, PcieLinkConfig
from nearkv_sim.hardware.wear import DriveConfig

PS_PER_S = 10**12
# Packets up to here are timed one by one; longer transfers go on at the rate of the second half. A test
# compares both at 8 MiB.
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
    """A link: PCIe, timed packet by packet, or latency and bandwidth. Exactly one of the two, or ValueError.

    Attributes:
        pj_per_byte: energy of a byte carried.
        pcie_preset: name in `pcie_config.PRESETS`; "" for the other kind.
        read_bandwidth_bytes_per_s, read_latency_ps: towards the inner tier.
        write_bandwidth_bytes_per_s, write_latency_ps: towards the outer tier.
        includes_ends: the figures were measured through both ends, whose own time must not be added.

    """

    pj_per_byte: float
    pcie_preset: str = ""
    read_bandwidth_bytes_per_s: int = 0
    read_latency_ps: int = 0
    write_bandwidth_bytes_per_s: int = 0
    write_latency_ps: int = 0
    includes_ends: bool = False

    def __post_init__(self) -> None:
        """Refuse a link that is neither or both."""
        rates = (self.read_bandwidth_bytes_per_s, self.write_bandwidth_bytes_per_s)
        if bool(self.pcie_preset) == (min(rates) > 0) or (self.pcie_preset and any(rates)):
            raise ValueError(
                f"pcie_preset is {self.pcie_preset!r} with bandwidths {rates}; allowed: a preset, or both"
                " bandwidths"
            )
        if self.pcie_preset and self.pcie_preset not in PRESETS:
            raise ValueError(f"pcie_preset is {self.pcie_preset!r}; allowed: {', '.join(PRESETS)}")


@dataclass(frozen=True)
class Stage(ABC):
    """Something that a transfer passes through.

    Attributes:
        name: of the resource.
        count: equal devices.
        pj_per_byte: energy of a byte that passes.

    """

    name: str
    count: int
    pj_per_byte: float

    def time_ps(self, nbytes: int) -> int:
        """Time from the first byte's arrival to the last byte's departure; nbytes from 1."""
        share = -(-nbytes // self.count)
        time_ps = self._time_ps(share)
        if share * PS_PER_S > self.bound_bytes_per_s * time_ps:
            raise AssertionError(f"{self.name} carries {share} bytes in {time_ps} ps: above its bound")
        return time_ps

    @property
    @abstractmethod
    def bound_bytes_per_s(self) -> int:
        """Rate that no transfer through one device exceeds."""

    @abstractmethod
    def _time_ps(self, nbytes: int) -> int:
        """Time of one device's share."""


@dataclass(frozen=True)
class RateStage(Stage):
    """Latency and bandwidth."""

    latency_ps: int
    bandwidth_bytes_per_s: int

    @property
    def bound_bytes_per_s(self) -> int:
        """The bandwidth."""
        return self.bandwidth_bytes_per_s

    def _time_ps(self, nbytes: int) -> int:
        return self.latency_ps - (-nbytes * PS_PER_S // self.bandwidth_bytes_per_s)


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
        whole = PACKET_BY_PACKET_BYTES
        if nbytes <= whole:
            return _packets_ps(self.config, nbytes, self.outward)
        full_ps = _packets_ps(self.config, whole, self.outward)
        half_ps = _packets_ps(self.config, whole // 2, self.outward)
        return full_ps - (-(nbytes - whole) * (full_ps - half_ps) // (whole // 2))


@cache
def _packets_ps(config: PcieLinkConfig, nbytes: int, outward: bool) -> int:
    link = PcieLink(config)
    move = link.device_read if outward else link.device_write
    return move(0, _HOST_BUFFER_ADDRESS, nbytes)


def memory_stage(name: str, count: int, config: MemoryConfig | DriveConfig, *, write: bool) -> RateStage:
    """Reading or writing a tier."""
    if isinstance(config, DriveConfig):
        latency_ps = config.write_latency_ps if write else config.read_latency_ps
    else:
        latency_ps = config.latency_ps
    bandwidth = config.write_bandwidth_bytes_per_s if write else config.read_bandwidth_bytes_per_s
    return RateStage(name, count, config.pj_per_byte, latency_ps, bandwidth)


def path_stage(name: str, count: int, config: PathConfig, *, outward: bool) -> Stage:
    """A link in one direction."""
    if config.pcie_preset:
        return PcieStage(name, count, config.pj_per_byte, PRESETS[config.pcie_preset], outward)
    if outward:
        latency_ps, bandwidth = config.write_latency_ps, config.write_bandwidth_bytes_per_s
    else:
        latency_ps, bandwidth = config.read_latency_ps, config.read_bandwidth_bytes_per_s
    return RateStage(name, count, config.pj_per_byte, latency_ps, bandwidth)
