"""What a machine remembers of its work: temperature of its FPGAs, wear of its drives."""

from __future__ import annotations

from nearkv.machine import Timing
from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_units import ScorerUnit
from nearkv_sim.hardware.wear import DriveConfig, DriveWear


class MachineState:
    """State of one machine over time. A hot card slows its scans down: the machine sees its temperature.

    Attributes:
        machine: the machine.
        now_ps: time spent.
        cards: scoring cards by name.
        drives: wear of one drive of every drive tier; the devices of a tier share writes evenly.

    """

    def __init__(self, machine: ModelMachine) -> None:
        """Start cool, new, at time 0."""
        self.machine = machine
        self.now_ps = 0
        self.cards = {name: unit for name, unit in machine.units.items() if isinstance(unit, ScorerUnit)}
        self.drives = {
            name: DriveWear(memory)
            for name, memory in machine.memories.items()
            if isinstance(memory, DriveConfig)
        }

    def spend(self, timing: Timing) -> None:
        """Let the time of some work pass: each card draws active power while it is busy."""
        for unit in self.cards.values():
            unit.thermal.advance(timing.time_ps, unit.power_w(timing))
        self.now_ps += timing.time_ps

    def write(self, tier: str, nbytes: int, write_bytes: int, *, random: bool) -> None:
        """Count a write to a drive tier that arrives in pieces of `write_bytes`.

        Raises:
            ValueError: no drive tier, or a bad size.

        """
        if tier not in self.drives:
            raise ValueError(f"tier is {tier!r}; allowed: {', '.join(self.drives) or 'no tier is a drive'}")
        count = self.machine.description.tier(tier).count
        self.drives[tier].write(-(-nbytes // count), write_bytes, random=random)

    def life_years(self, tier: str) -> float:
        """Projected life of a drive at the mean rate of writes so far; ValueError before any time passed."""
        return self.drives[tier].projected_life_years(self.now_ps)
