"""What carries bytes between tiers: how long each leg of a move takes, and how it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from nearkv.kvcache.clock import Clock, Event
from nearkv.machine import PS_PER_S, Machine
from nearkv.pipeline.settings import LEAST_LINK_CAP

_GOOD_EFFICIENCY = 0.9
_LARGEST_BATCH_BYTES = 64 << 20


class Leg(Enum):
    """Parts of a move, in order."""

    READ = "read"  # source device to staging buffer
    DMA = "dma"  # staging buffer over the link to the target device
    WRITE = "write"  # the target's acknowledgement that the bytes are kept


class Outcome(Enum):
    """How a leg ended."""

    OK = "ok"
    ERROR = "error"
    NO_SPACE = "no_space"  # the target refused the write for want of space, whatever its logical capacity


class LinkTimes(ABC):
    """How long each leg takes on an idle path."""

    @abstractmethod
    def leg_ps(self, leg: Leg, source: str, target: str, nbytes: int) -> int:
        """Time of one leg of a move between two tiers named by the machine."""


@dataclass(frozen=True)
class PathTimes:
    """Latency and bandwidth of reading a source and of the link with the target behind it.

    ValueError for a negative latency or a bandwidth not above 0.
    """

    read_latency_ps: int
    read_bytes_per_s: float
    link_latency_ps: int
    link_bytes_per_s: float

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("read_latency_ps", "link_latency_ps"):
            if (latency := getattr(self, name)) < 0:
                raise ValueError(f"{name} is {latency}; allowed: from 0")
        for name in ("read_bytes_per_s", "link_bytes_per_s"):
            if not (rate := getattr(self, name)) > 0:
                raise ValueError(f"{name} is {rate}; allowed: above 0")

    def leg_ps(self, leg: Leg, nbytes: int) -> int:
        """Latency + nbytes / bandwidth, rounded down; an acknowledgement takes no time."""
        if leg is Leg.READ:
            return self.read_latency_ps + int(nbytes * PS_PER_S / self.read_bytes_per_s)
        if leg is Leg.DMA:
            return self.link_latency_ps + int(nbytes * PS_PER_S / self.link_bytes_per_s)
        return 0


class DescribedLinks(LinkTimes):
    """Times of paths described one by one.

    Args:
        default: of every path that is not listed.
        paths: by (source, target).

    """

    def __init__(
        self, default: PathTimes, paths: Mapping[tuple[str, str], PathTimes] = MappingProxyType({})
    ) -> None:
        self._default, self._paths = default, paths

    def leg_ps(self, leg: Leg, source: str, target: str, nbytes: int) -> int:
        """Time of the path's leg."""
        return self._paths.get((source, target), self._default).leg_ps(leg, nbytes)


class MachineLinks(LinkTimes):
    """Times of a described machine: a move's legs add up to `Machine.transfer`.

    The read leg is the time for which the transfer occupies its source (what lies before the link, if a
    peer link stands for source and target as well); the rest of the transfer is the DMA leg. Of several
    moves under way, one reads while another is on the link.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def leg_ps(self, leg: Leg, source: str, target: str, nbytes: int) -> int:
        """Part of the transfer's time; ValueError for a tier that the machine does not have."""
        if leg is Leg.WRITE:
            return 0
        timing = self._machine.transfer(source, target, nbytes)
        read_ps = min(timing.busy_ps.get(source, 0), timing.time_ps)
        return read_ps if leg is Leg.READ else timing.time_ps - read_ps


def good_batch_bytes(links: LinkTimes, source: str, target: str, smallest_bytes: int) -> int:
    """Smallest doubling of `smallest_bytes` at which a path reaches 90 % of its bandwidth at 64 MiB.

    A SmartSSD's peer-to-peer reads need 46 µs + bytes / 2.14 GB/s (vendor log of synchronous reads), so that
    a single row is a hundred times slower per byte than a batch of a megabyte.

    Raises ValueError for a size below 1 byte.
    """
    if smallest_bytes < 1:
        raise ValueError(f"smallest_bytes is {smallest_bytes}; allowed: from 1")

    def ps_per_byte(nbytes: int) -> float:
        return sum(links.leg_ps(leg, source, target, nbytes) for leg in Leg) / nbytes

    limit = ps_per_byte(_LARGEST_BATCH_BYTES) / _GOOD_EFFICIENCY
    nbytes = smallest_bytes
    while nbytes < _LARGEST_BATCH_BYTES and ps_per_byte(nbytes) > limit:
        nbytes *= 2
    return nbytes


class Mover(ABC):
    """Carries one leg at a time for the engine.

    Contract: `done` is called once, from the clock, unless the event is cancelled first. A cancelled leg is
    aborted: it touches neither buffer nor device from then on, so that both may be used again.

    Attributes:
        links: times to be expected, by which batches are sized.

    """

    links: LinkTimes

    @abstractmethod
    def start(
        self, leg: Leg, source: str, target: str, nbytes: int, done: Callable[[Outcome], None]
    ) -> Event | None:
        """Begin a leg; None for one that will never end by itself."""


class SimulatedMover(Mover):
    """Legs end after the link's time, and one (leg, source, target) carries them one after the other.

    Args:
        clock: the engine's clock.
        links: times on an idle path.
        link_cap: share of the time that a path may be busy: after a leg it rests for time · (1/cap − 1).

    Raises ValueError for a cap below 0.001 or above 1.

    """

    def __init__(self, clock: Clock, links: LinkTimes, link_cap: float = 1.0) -> None:
        if not LEAST_LINK_CAP <= link_cap <= 1:
            raise ValueError(f"link_cap is {link_cap}; allowed: {LEAST_LINK_CAP} to 1")
        self.clock, self.links, self.link_cap = clock, links, link_cap
        self._free_at_ps: dict[tuple[Leg, str, str], int] = {}

    def start(
        self, leg: Leg, source: str, target: str, nbytes: int, done: Callable[[Outcome], None]
    ) -> Event | None:
        """Queue the leg on its path; it ends OK."""
        path = (leg, source, target)
        start_ps = max(self.clock.now_ps, self._free_at_ps.get(path, 0))
        time_ps = self.links.leg_ps(leg, source, target, nbytes)
        self._free_at_ps[path] = start_ps + int(time_ps / self.link_cap)
        return self.clock.at(start_ps + time_ps, lambda: done(Outcome.OK))
