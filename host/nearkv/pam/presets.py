"""Presets of PAM: strict YAML with the article's `scheduling:` keys as it writes them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from nearkv.experiments.strict import load_named, names_in
from nearkv.machine import MachineDescription, TierKind
from nearkv.pam.scheduler import Rule, Scheduling

PRESET_FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True, kw_only=True)
class PamPreset:
    """A deployment of PAM.

    Attributes:
        description: one line.
        source: who advises it.
        machine: name of a machine.
        rule: whose importance.
        scheduling: the article's keys.
        hbm_share: most of the tokens that HBM takes, above 0, to 1.
        ssd_devices: SSD-PIM controllers of a node; null for those of the machine.

    ValueError for a value out of range.

    """

    description: str
    source: str
    machine: str
    rule: Rule
    scheduling: Scheduling = field(default_factory=Scheduling)
    hbm_share: float = 1.0
    ssd_devices: int | None = None

    def __post_init__(self) -> None:
        """Check what the scheduler does not."""
        if not 0 < self.hbm_share <= 1:
            raise ValueError(f"hbm_share is {self.hbm_share!r}; allowed: above 0, to 1")
        if self.ssd_devices is not None and self.ssd_devices < 1:
            raise ValueError(f"ssd_devices is {self.ssd_devices!r}; allowed: from 1, or null")

    def room_tokens(self, description: MachineDescription, token_bytes: int, tokens: int) -> tuple[int, ...]:
        """Tokens that each PIM tier takes of `tokens`: its capacity, and in HBM at most its share.

        Raises:
            ValueError: a machine without exactly three PIM tiers, or a size below 1.

        """
        if token_bytes < 1 or tokens < 1:
            raise ValueError(f"token_bytes is {token_bytes} and tokens {tokens}; allowed: from 1")
        tiers = [tier for tier in self.resized(description).tiers if tier.kind is TierKind.PIM_MEMORY]
        if len(tiers) != 3:
            raise ValueError(f"machine has {len(tiers)} PIM tiers; allowed: HBM, DDR and SSD")
        hbm, *others = (min(tier.capacity_bytes // token_bytes, tokens) for tier in tiers)
        return (min(hbm, max(1, int(tokens * self.hbm_share))), *others)

    def resized(self, description: MachineDescription) -> MachineDescription:
        """The machine with the preset's number of SSDs: capacity, units and links grow with it."""
        if self.ssd_devices is None:
            return description
        *_, ssd = (tier for tier in description.tiers if tier.kind is TierKind.PIM_MEMORY)
        count, wanted = ssd.count, self.ssd_devices
        tiers = (
            replace(tier, count=wanted, capacity_bytes=tier.capacity_bytes // count * wanted)
            if tier is ssd
            else tier
            for tier in description.tiers
        )
        processors = (
            replace(unit, count=wanted) if unit.tier == ssd.name else unit for unit in description.processors
        )
        links = (
            replace(link, count=wanted) if ssd.name in (link.inner, link.outer) else link
            for link in description.links
        )
        return replace(description, tiers=tuple(tiers), processors=tuple(processors), links=tuple(links))


def preset_names() -> list[str]:
    """Names of the presets that ship."""
    return names_in(PRESET_FOLDER)


def load_preset(name: str) -> PamPreset:
    """A preset by name, or from a file with suffix .yaml.

    Raises:
        ValueError: an unknown name, or a bad file: names it, the key and what is allowed.

    """
    return load_named(PamPreset, PRESET_FOLDER, name, "preset")
