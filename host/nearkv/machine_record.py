"""What a machine remembers of its work: energy, temperature of its cards, wear of its drives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping

from nearkv.machine import Machine, Timing


class MachineRecord:
    """Totals of one machine from the moment the record was opened: cool, with new drives."""

    @abstractmethod
    def spend(self, interval: Timing, work: Iterable[Timing] = ()) -> None:
        """Let the time of an interval pass.

        Args:
            interval: its length, and how long each resource was busy in it.
            work: what was done meanwhile, piece by piece, for its energy.

        """

    @abstractmethod
    def write(self, tier: str, nbytes: int, write_bytes: int, *, random: bool) -> None:
        """Count a write to a drive tier in pieces of `write_bytes`; ValueError for a tier without drives."""

    @property
    @abstractmethod
    def energy_j(self) -> Mapping[str, float]:
        """Energy so far by component, idle power of every processor included."""

    @property
    @abstractmethod
    def celsius(self) -> Mapping[str, float]:
        """Temperature of every scoring card."""

    @property
    @abstractmethod
    def wear(self) -> Mapping[str, float]:
        """Share of its rated life that a drive of each drive tier has used."""

    @property
    @abstractmethod
    def write_amplification(self) -> Mapping[str, float]:
        """Bytes to the NAND per byte from the host, for every drive tier that was written to."""


class RecordedMachine(Machine):
    """A machine that can keep such a record."""

    @abstractmethod
    def start_record(self) -> MachineRecord:
        """Open a new record. Only one is to be kept at a time: a hot card slows its scans down."""
