"""What a machine remembers of its work: energy, temperature of its FPGAs, wear of its drives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nearkv.machine import Timing
from nearkv.machine_record import MachineRecord
from nearkv_sim.hardware.energy import EnergyMeter
from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_units import NearMemoryUnit, RooflineUnit, ScorerUnit
from nearkv_sim.hardware.wear import DriveConfig, DriveWear


class MachineState(MachineRecord):
    """State of one machine over time. A hot card slows its scans down: the machine sees its temperature.

    Energy of work: operations at the processor's energy per operation, bytes at that of every memory and link
    that was busy with them (a processor at a tier reads them there), active instead of idle power of a card
    while it scores. Idle power of every processor runs all the time.

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
        self._meter = EnergyMeter()
        self._wires = {link.wires: machine.paths[link.wires] for link in machine.description.links}

    def spend(self, interval: Timing, work: Iterable[Timing] = ()) -> None:
        """Let the time of an interval pass: each card draws active power while it is busy."""
        for card in self.cards.values():
            card.thermal.advance(interval.time_ps, card.power_w(interval))
        for name, unit in self.machine.units.items():
            self._meter.add_power(name, interval.time_ps * unit.count, unit.idle_power_w)
        for timing in work:
            self._count(timing)
        self.now_ps += interval.time_ps

    def _count(self, timing: Timing) -> None:
        for resource, busy_ps in timing.busy_ps.items():
            if resource in self._wires:
                self._meter.add_bytes(resource, timing.nbytes, self._wires[resource].pj_per_byte)
            elif resource in self.machine.memories:
                memory = self.machine.memories[resource]
                self._meter.add_bytes(resource, timing.nbytes, memory.pj_per_byte)
            elif resource in self.machine.units:
                self._count_unit(resource, busy_ps, timing)

    def _count_unit(self, name: str, busy_ps: int, timing: Timing) -> None:
        unit = self.machine.unit(name)
        if isinstance(unit, ScorerUnit):
            active_w = unit.config.active_power_w - unit.config.idle_power_w
            self._meter.add_power(name, busy_ps * unit.count, active_w)
            return
        if isinstance(unit, RooflineUnit | NearMemoryUnit):
            self._meter.add_flops(name, timing.flops, unit.config.pj_per_flop)
        tier = self.machine.tier_of(name)
        if tier in timing.busy_ps:  # counted there
            return
        if self.machine.in_memory(name) and isinstance(unit, NearMemoryUnit):
            self._meter.add_bytes(tier, timing.nbytes, unit.config.pj_per_byte)
        else:
            self._meter.add_bytes(tier, timing.nbytes, self.machine.memories[tier].pj_per_byte)

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

    @property
    def energy_j(self) -> Mapping[str, float]:
        """Energy so far by component."""
        return {share.component: share.joules for share in self._meter.shares}

    @property
    def celsius(self) -> Mapping[str, float]:
        """Temperature of every scoring card."""
        return {name: unit.thermal.temperature_c for name, unit in self.cards.items()}

    @property
    def wear(self) -> Mapping[str, float]:
        """Share of its rated life that a drive of each drive tier has used."""
        return {name: drive.life_used for name, drive in self.drives.items()}

    @property
    def write_amplification(self) -> Mapping[str, float]:
        """Bytes to the NAND per byte from the host, for every drive tier that was written to."""
        return {name: drive.amplification for name, drive in self.drives.items() if drive.host_bytes}
