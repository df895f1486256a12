"""`Machine`: what a runtime asks of its hardware. Implementations are entry points `nearkv.machines`.

A machine file is strict YAML; an unknown, missing or repeated key, a wrong type or a name that leads nowhere
is refused with file, key and reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path

from nearkv.experiments.strict import load_yaml, parse

ENTRY_POINT_GROUP = "nearkv.machines"
PS_PER_S = 10**12


class TierKind(Enum):
    """What a tier is made of, seen by placement."""

    GPU_MEMORY = "gpu_memory"
    HOST_MEMORY = "host_memory"
    CARD_MEMORY = "card_memory"  # beside an FPGA
    PIM_MEMORY = "pim_memory"
    DRIVE = "drive"


@dataclass(frozen=True)
class TierDescription:
    """Memory of one kind.

    Attributes:
        name: unique in the machine.
        kind: what placement has to know about it.
        profile: device it consists of, as kind/name of a profile.
        capacity_bytes: of all devices together, at most what they hold.
        count: equal devices, read and written side by side.

    """

    name: str
    kind: TierKind
    profile: str
    capacity_bytes: int
    count: int = 1


@dataclass(frozen=True)
class ProcessorDescription:
    """Compute that sits at a tier.

    Attributes:
        name: unique in the machine.
        profile: as kind/name of a profile.
        tier: name of the tier it reads at full rate.
        count: equal processors, each with its share of the tier.

    """

    name: str
    profile: str
    tier: str
    count: int = 1


@dataclass(frozen=True)
class LinkDescription:
    """A connection of two tiers.

    Attributes:
        name: unique in the machine.
        inner, outer: tiers; a device at `outer` moves the data with its own DMA.
        profile: as kind/name of a profile.
        count: equal links side by side.
        shares: name of another link whose wires it uses; "" for wires of its own.

    """

    name: str
    inner: str
    outer: str
    profile: str
    count: int = 1
    shares: str = ""

    @property
    def wires(self) -> str:
        """Name of the resource that is busy while it carries bytes."""
        return self.shares or self.name


@dataclass(frozen=True)
class MachineDescription:
    """What a machine file says.

    Attributes:
        description: one line.
        source: who published this configuration.
        tiers: in the order in which a KV cache fills them, fastest first.
        processors: compute devices.
        links: connections; they join all tiers.

    ValueError for names given twice or leading nowhere, a count or capacity below 1, unconnected tiers.

    """

    description: str
    source: str
    tiers: tuple[TierDescription, ...]
    processors: tuple[ProcessorDescription, ...]
    links: tuple[LinkDescription, ...]

    def __post_init__(self) -> None:
        """Check what can be checked without profiles."""
        parts: list[TierDescription | ProcessorDescription | LinkDescription]
        parts = [*self.tiers, *self.processors, *self.links]
        names = [part.name for part in parts]
        for part in parts:
            if names.count(part.name) > 1:
                raise ValueError(f"name {part.name!r} is given {names.count(part.name)} times; allowed: once")
            if part.count < 1:
                raise ValueError(f"count of {part.name} is {part.count}; allowed: from 1")
        if not self.tiers:
            raise ValueError("tiers is empty; allowed: at least one")
        tiers = [tier.name for tier in self.tiers]
        for tier in self.tiers:
            if tier.capacity_bytes < 1:
                raise ValueError(f"capacity_bytes of {tier.name} is {tier.capacity_bytes}; allowed: from 1")
        for what, name in self._references():
            if name not in tiers:
                raise ValueError(f"{what} is {name!r}; allowed: {', '.join(tiers)}")
        owners = [link.name for link in self.links if not link.shares]
        for link in self.links:
            if link.shares and link.shares not in owners:
                raise ValueError(f"shares of {link.name} is {link.shares!r}; allowed: {', '.join(owners)}")
            if link.inner == link.outer:
                raise ValueError(f"outer of {link.name} is {link.outer!r}, like inner; allowed: another tier")
        for tier in self.tiers[1:]:
            self.path(self.tiers[0].name, tier.name)

    def _references(self) -> list[tuple[str, str]]:
        named = [(f"tier of {processor.name}", processor.tier) for processor in self.processors]
        for link in self.links:
            named += [(f"inner of {link.name}", link.inner), (f"outer of {link.name}", link.outer)]
        return named

    def tier(self, name: str) -> TierDescription:
        """A tier by name; ValueError lists the known ones."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise ValueError(f"tier is {name!r}; allowed: {', '.join(tier.name for tier in self.tiers)}")

    def path(self, source: str, target: str) -> tuple[LinkDescription, ...]:
        """Fewest links from one tier to another, in order; ValueError for an unknown tier or none."""
        self.tier(source)
        self.tier(target)
        found: dict[str, tuple[LinkDescription, ...]] = {source: ()}
        queue = deque([source])
        while queue:
            here = queue.popleft()
            for link in self.links:
                if here in (link.inner, link.outer):
                    other = link.outer if here == link.inner else link.inner
                    if other not in found:
                        found[other] = (*found[here], link)
                        queue.append(other)
        if target not in found:
            raise ValueError(f"links do not join {source} and {target}; allowed: all tiers joined")
        return found[target]


@dataclass(frozen=True)
class Timing:
    """How long something takes, and why.

    Attributes:
        time_ps: from start to end.
        nbytes: bytes moved or read.
        busy_ps: for every resource involved, how long it is occupied.
        flops: operations of processors, a multiply-add counts two; 0 where they are not counted.

    """

    time_ps: int
    nbytes: int
    busy_ps: Mapping[str, int]
    flops: int = 0

    @property
    def why(self) -> str:
        """The busiest resource."""
        return max(self.busy_ps, key=lambda name: self.busy_ps[name])

    @property
    def bytes_per_s(self) -> float:
        """Bytes over time."""
        return self.nbytes * PS_PER_S / self.time_ps


class Machine(ABC):
    """Hardware that answers how long things take. Every method raises ValueError for an unknown name."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name it was opened under."""

    @property
    @abstractmethod
    def description(self) -> MachineDescription:
        """Its tiers, processors and links."""

    @abstractmethod
    def transfer(self, source: str, target: str, nbytes: int) -> Timing:
        """Copy at least one byte from one tier to another on the path with the fewest links."""

    @abstractmethod
    def gather(self, source: str, target: str, nbytes: int, piece_bytes: int, region_bytes: int) -> Timing:
        """Copy `nbytes` that lie in pieces of `piece_bytes`, scattered evenly over `region_bytes` of a tier.

        Where whole pages must be read, the region is read instead if that is faster. ValueError unless
        1 ≤ piece_bytes and 1 ≤ nbytes ≤ region_bytes.
        """

    @abstractmethod
    def scan(self, processor: str, nbytes: int, *, code_bits: int = 8) -> Timing:
        """Let a processor read at least one byte of keys in its own tier and score them.

        `code_bits` is the width of a scorer's key codes, 8 or 4; processors that read FP16 rows take 8 only.
        """

    @abstractmethod
    def compute(self, processor: str, flops: int, nbytes: int) -> Timing:
        """Run a kernel of at least one operation and byte on a GPU or CPU; a multiply-add counts two."""

    @abstractmethod
    def attend(self, processor: str, tokens: int, query_heads: int, kv_heads: int, head_dim: int) -> Timing:
        """Attention inside a PIM memory: each query head over `tokens` FP16 rows of its KV head.

        Heads are those of all sequences together; each count is at least 1.
        """


def read_machine(path: Path) -> MachineDescription:
    """Read a machine file.

    Raises:
        ValueError: names the file, the key and what is allowed. OSError where it cannot be read.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from None
    return parse(MachineDescription, load_yaml(text, str(path)), str(path))


def open_machine(name: str, implementation: str = "model") -> Machine:
    """Open a machine.

    Args:
        name: one that the implementation ships, or the path of a machine file (with a suffix .yaml).
        implementation: an entry point of the group `nearkv.machines`; its object is called with the name.

    Raises:
        ValueError: an unknown implementation or name, or a bad file.

    """
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if implementation not in found:
        raise ValueError(f"machines of kind {implementation!r}; allowed: {', '.join(sorted(found))}")
    factory: Callable[[str], object] = found[implementation].load()
    machine = factory(name)
    if not isinstance(machine, Machine):
        raise TypeError(
            f"entry point {implementation} of {ENTRY_POINT_GROUP} made a {type(machine).__name__}"
        )
    return machine
