"""Fault plans: which TLP of a run suffers what. Same plan, same run, same faults.

Sources of the fault kinds: PCI Express Base Specification 5.0, 3.6 (LCRC, sequence numbers, replay), 2.7.2
(poisoned data), 2.2.9 (completion status), 2.8 (completion timeout), 2.9 (DL_Down).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nearkv_sim.hardware.pcie_config import require_integer

__all__ = ["Fault", "FaultKind", "FaultPlan", "TlpRole"]

MOST_DELAY_PS = 10**12
MOST_TRANSMISSIONS = 16
_Choice = TypeVar("_Choice", bound=Enum)


class TlpRole(Enum):
    """What a TLP on the card's link is for; faults happen there."""

    REGISTER_READ = "register_read"  # host loads a register
    REGISTER_WRITE = "register_write"  # host stores a register
    DOORBELL = "doorbell"  # host starts the card's DMA engine
    QUERY_LOAD = "query_load"  # the card reads host memory: queries, descriptors, keys, address lists
    RESULT_WRITE = "result_write"  # the card writes host memory: scores, rows
    DMA_COMPLETION = "dma_completion"  # the card writes the word that the host polls
    MSI = "msi"  # the card's interrupt
    KEY_READ = "key_read"  # the drive writes what was read of it into the card
    KEY_WRITE = "key_write"  # the drive reads from the card: keys for itself, or one word behind a KEY_READ
    REGISTER_COMPLETION = "register_completion"  # answer to REGISTER_READ
    QUERY_COMPLETION = "query_completion"  # answer to QUERY_LOAD
    KEY_COMPLETION = "key_completion"  # answer to KEY_WRITE


class FaultKind(Enum):
    """What happens to a TLP. The first three are cured by the link layer, by replay."""

    DROPPED = "dropped"  # never arrives
    DUPLICATED = "duplicated"  # arrives twice
    CORRUPTED = "corrupted"  # a bit flips, so that the LCRC is wrong
    DELAYED = "delayed"  # arrives `delay_ps` later, and everything behind it too
    POISONED = "poisoned"  # its data is marked bad (EP)
    UR = "ur"  # the completer answers Unsupported Request
    CA = "ca"  # the completer answers Completer Abort
    TIMEOUT = "timeout"  # received, then lost: the requester waits for a completion until its timeout
    LOST_MSI = "lost_msi"  # received, then lost: no handler runs
    LINK_DOWN = "link_down"  # the link fails as this TLP is sent; up again after `delay_ps`, 0 for never


_REQUESTS = {TlpRole.REGISTER_READ, TlpRole.QUERY_LOAD, TlpRole.KEY_WRITE}
_COMPLETIONS = {TlpRole.REGISTER_COMPLETION, TlpRole.QUERY_COMPLETION, TlpRole.KEY_COMPLETION}
_TIMED = {FaultKind.DELAYED, FaultKind.LINK_DOWN}
_REPEATED = {FaultKind.DROPPED, FaultKind.CORRUPTED}
_ROLES = {
    FaultKind.POISONED: set(TlpRole) - _REQUESTS,  # only data can be poisoned
    FaultKind.UR: _REQUESTS,
    FaultKind.CA: _REQUESTS,
    FaultKind.TIMEOUT: _REQUESTS | _COMPLETIONS,
    FaultKind.LOST_MSI: {TlpRole.MSI},
}


def roles_of(fault: FaultKind) -> list[TlpRole]:
    """TLPs that can suffer a fault, in the order of `TlpRole`."""
    return [role for role in TlpRole if role in _ROLES.get(fault, set(TlpRole))]


@dataclass(frozen=True)
class Fault:
    """One fault. Raises ValueError for a combination that no link knows, and for values outside their range.

    Attributes:
        tlp: of what kind the TLP is.
        index: which of them since the transport was opened, from 0; replays do not count.
        fault: what happens to it.
        count: transmissions of it that suffer, replays included; above 1 only if dropped or corrupted.
        delay_ps: of `delayed`, at least 1, and of `link_down`; else 0.

    """

    tlp: TlpRole
    index: int
    fault: FaultKind
    count: int = 1
    delay_ps: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot happen."""
        require_integer("index", self.index, 0, 2**31)
        require_integer("count", self.count, 1, MOST_TRANSMISSIONS if self.fault in _REPEATED else 1)
        least_ps = int(self.fault is FaultKind.DELAYED)
        require_integer("delay_ps", self.delay_ps, least_ps, MOST_DELAY_PS if self.fault in _TIMED else 0)
        if self.tlp not in roles_of(self.fault):
            allowed = ", ".join(role.value for role in roles_of(self.fault))
            raise ValueError(f"tlp is {self.tlp.value} for fault {self.fault.value}; allowed: {allowed}")


@dataclass(frozen=True)
class FaultPlan:
    """The faults of a run. Raises ValueError if one TLP is to suffer twice."""

    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two faults of one TLP."""
        places = [(fault.tlp, fault.index) for fault in self.faults]
        for tlp, index in places:
            if places.count((tlp, index)) > 1:
                raise ValueError(f"faults has two for {tlp.value} {index}; allowed: one per TLP")

    @classmethod
    def random(
        cls,
        seed: int,
        faults: int,
        *,
        kinds: Sequence[FaultKind] = tuple(FaultKind),
        below_index: int = 16,
        most_delay_ps: int = 1_000_000,
    ) -> FaultPlan:
        """Draw `faults` faults of these kinds on TLPs with an index below `below_index`, never two on one.

        Raises ValueError if there are not enough TLPs for that.
        """
        places = sorted({role.value for kind in kinds for role in roles_of(kind)})
        require_integer("faults", faults, 0, len(places) * below_index)
        draw = random.Random(seed)
        taken: dict[tuple[TlpRole, int], Fault] = {}
        while len(taken) < faults:
            kind = draw.choice(list(kinds))
            tlp, index = draw.choice(roles_of(kind)), draw.randrange(below_index)
            delay_ps = draw.randint(1, most_delay_ps) if kind in _TIMED else 0
            taken.setdefault((tlp, index), Fault(tlp, index, kind, delay_ps=delay_ps))
        return cls(tuple(taken.values()))

    @classmethod
    def from_dict(cls, content: object) -> FaultPlan:
        """Plan of `{"faults": [{"tlp": ..., "index": ..., "fault": ...}]}`; ValueError for anything else."""
        entries = content.get("faults") if isinstance(content, dict) and set(content) == {"faults"} else None
        if not isinstance(entries, list):
            raise ValueError(f"fault plan is {content!r}; allowed: one key, faults, with a list")
        return cls(tuple(_fault(entry) for entry in entries))

    @classmethod
    def load(cls, path: Path) -> FaultPlan:
        """Plan of a YAML file; ValueError names the file, OSError if it cannot be read."""
        try:
            return cls.from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (ValueError, yaml.YAMLError) as error:
            raise ValueError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` takes; fields at their default are left out."""
        entries = []
        for fault in self.faults:
            content = {**asdict(fault), "tlp": fault.tlp.value, "fault": fault.fault.value}
            if fault.count == 1:
                del content["count"]
            if fault.delay_ps == 0:
                del content["delay_ps"]
            entries.append(content)
        return {"faults": entries}


def _fault(entry: object) -> Fault:
    known = [field.name for field in fields(Fault)]
    if not isinstance(entry, dict) or not {"tlp", "index", "fault"} <= set(entry) <= set(known):
        raise ValueError(f"fault is {entry!r}; allowed: tlp, index, fault, and count or delay_ps")
    tlp, fault = _choice(TlpRole, "tlp", entry["tlp"]), _choice(FaultKind, "fault", entry["fault"])
    return Fault(**{**entry, "tlp": tlp, "fault": fault})


def _choice(kind: type[_Choice], name: str, value: object) -> _Choice:
    for member in kind:
        if member.value == value:
            return member
    raise ValueError(f"{name} is {value!r}; allowed: {', '.join(str(member.value) for member in kind)}")
