"""The flash translation layer: where every unit lies, and what is valid. No time passes here."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.ssd.config import COLLECTOR_SUPERBLOCKS, SsdConfig

__all__ = ["Ftl", "Place", "Stamp"]


@dataclass(frozen=True)
class Place:
    """A row: what one NAND read brings into the registers of a die."""

    die: int
    page_type: int
    row: int  # unique in the drive


@dataclass(frozen=True)
class Stamp:
    """A version of a unit: `sequence` grows with every write, `tag` stands for the data."""

    sequence: int
    tag: int


class Ftl:
    """Page map over superblocks, one open superblock a stream.

    Slots, of `mapping_unit_bytes`, are numbered so that neighbours share a program unit, and program units go
    round the dies: a long sequential write is spread over all of them. The map is exact; a drive that was
    filled in order before the simulation starts (`filled_bytes`) needs no entry per unit, so memory grows
    with what the simulation writes. Free superblocks are taken least-erased first (dynamic wear levelling).

    Raises ValueError if `filled_bytes` is negative, exceeds the logical capacity or splits a unit.

    Members:
        erases: per superblock.
        host_units, programmed_units: written by the host; written to NAND, padding and collection included.
        last_sequence: highest sequence in NAND.
        saved: versions that capacitors put aside at a power cut, in the order of the writes; the next drive
            takes them back into its write buffer.

    """

    STREAMS = ("host", "collector")  # kept apart: what survives a collection tends to stay valid

    def __init__(self, config: SsdConfig, filled_bytes: int = 0) -> None:
        """A drive whose first `filled_bytes` hold data with tag 0."""
        require_integer("filled_bytes", filled_bytes, 0, config.logical_bytes)
        if filled_bytes % config.mapping_unit_bytes:
            raise ValueError(
                f"filled_bytes is {filled_bytes}; allowed: whole {config.mapping_unit_bytes} bytes"
            )
        self.config = config
        self._row_slots = config.row_bytes // config.mapping_unit_bytes
        self.unit_slots = config.program_unit_bytes // config.mapping_unit_bytes
        self._superblock_slots = config.superblock_bytes // config.mapping_unit_bytes
        self._filled = filled_bytes // config.mapping_unit_bytes
        # Logical unit to slot, where it is not the fill's; None once discarded.
        self._slot_of: dict[int, int | None] = {}
        self._unit_at: dict[int, int] = {}  # slot to logical unit, likewise
        self._stamps: dict[int, Stamp] = {}  # of mapped units that the simulation wrote
        self._discarded: dict[int, int] = {}  # unit to the sequence below which versions are void
        full, rest = divmod(self._filled, self._superblock_slots)
        self.valid = [self._superblock_slots] * full + [rest] * (rest > 0)
        self._closed = set(range(len(self.valid)))
        self._free = list(range(len(self.valid), config.blocks_per_plane))
        self.valid += [0] * len(self._free)
        self._mapped = self._filled
        self.erases = [0] * config.blocks_per_plane
        self._pending = [0] * config.blocks_per_plane  # program units allocated but not yet in NAND
        self._open: dict[str, tuple[int, int]] = {}  # stream to (superblock, next program unit)
        self.host_units = self.programmed_units = 0
        self.last_sequence = 0
        self.saved: dict[int, Stamp] = {}

    @property
    def free_superblocks(self) -> int:
        """Erased and not open."""
        return len(self._free)

    @property
    def write_amplification(self) -> float:
        """Units written to NAND per unit written by the host; 0 before the first."""
        return self.programmed_units / self.host_units if self.host_units else 0.0

    def locate(self, unit: int) -> int | None:
        """Slot of a logical unit; None if it holds nothing."""
        return self._slot_of.get(unit, unit if unit < self._filled else None)

    def stamp(self, unit: int) -> Stamp | None:
        """Version of a logical unit in NAND, or saved at a power cut; None if it holds nothing."""
        if unit in self.saved:
            return self.saved[unit]
        return None if self.locate(unit) is None else self._stamps.get(unit, Stamp(0, 0))

    def place(self, slot: int) -> Place:
        """Row of a slot."""
        die, within = slot // self.unit_slots % self.config.dies, slot % self.unit_slots
        return Place(die, within // self._row_slots, slot // self._row_slots)

    def can_allocate(self, stream: str) -> bool:
        """Whether the stream may have another program unit; the last free superblocks are the collector's."""
        kept = COLLECTOR_SUPERBLOCKS if stream == "host" else 0
        return stream in self._open or self.free_superblocks > kept

    def allocate(self, stream: str) -> int:
        """First slot of the stream's next program unit.

        RuntimeError if no superblock is free, which takes many power cuts in one and the same collection.
        """
        if stream not in self._open:
            if not self._free:
                raise RuntimeError("no erased superblock is left: too many power cuts in one collection")
            superblock = min(self._free, key=lambda free: (self.erases[free], free))
            self._free.remove(superblock)
            self._open[stream] = (superblock, 0)
        superblock, unit = self._open[stream]
        self._pending[superblock] += 1
        if (unit + 1) * self.unit_slots == self._superblock_slots:
            del self._open[stream]
            self._closed.add(superblock)
        else:
            self._open[stream] = (superblock, unit + 1)
        return superblock * self._superblock_slots + unit * self.unit_slots

    def commit(self, first_slot: int, units: list[tuple[int, Stamp]]) -> None:
        """A program unit is in NAND: map what it holds, unless that was overtaken meanwhile.

        A copy that the collector made has the sequence of its original and replaces it.
        """
        self._pending[first_slot // self._superblock_slots] -= 1
        self.programmed_units += self.unit_slots
        for slot, (unit, stamp) in enumerate(units, first_slot):
            if stamp.sequence >= self._void_below(unit):
                self._move(unit, slot, stamp)

    def discard(self, unit: int, sequence: int) -> None:
        """The host has given the unit up: unmap it, and ignore versions older than `sequence` for ever."""
        self._discarded[unit] = sequence
        self.last_sequence = max(self.last_sequence, sequence)
        slot = self.locate(unit)
        if slot is not None:
            self._mapped -= 1
            self.valid[slot // self._superblock_slots] -= 1
            self._unit_at.pop(slot, None)
            self._stamps.pop(unit, None)
        self._slot_of[unit] = None

    def _move(self, unit: int, slot: int, stamp: Stamp) -> None:
        old = self.locate(unit)
        if old is None:
            self._mapped += 1
        else:
            self.valid[old // self._superblock_slots] -= 1
            self._unit_at.pop(old, None)
        self._slot_of[unit], self._unit_at[slot], self._stamps[unit] = slot, unit, stamp
        self.valid[slot // self._superblock_slots] += 1
        self.last_sequence = max(self.last_sequence, stamp.sequence)

    def victim(self) -> int | None:
        """Closed superblock with the fewest valid units, all in NAND.

        None if its copies, padded to whole program units, would fill as much as erasing it frees.
        """
        ready = [one for one in self._closed if not self._pending[one]]
        best = min(ready, key=lambda one: (self.valid[one], one), default=None)
        if best is None or self.valid[best] > self._superblock_slots - self.unit_slots:
            return None
        return best

    def valid_units(self, superblock: int) -> list[int]:
        """Logical units whose only copy in NAND is in this superblock, by slot."""
        first = superblock * self._superblock_slots
        found = []
        for slot in range(first, first + self._superblock_slots):
            unit = self._unit_at.get(slot, slot if slot < self._filled else None)
            if unit is not None and self.locate(unit) == slot:
                found.append(unit)
        return found

    def release(self, superblock: int) -> None:
        """The superblock has been erased."""
        assert self.valid[superblock] == 0, "erased a superblock that holds valid units"
        assert sum(self.valid) == self._mapped, "valid slots and mapped units differ"
        self._closed.remove(superblock)
        self._free.append(superblock)
        self.erases[superblock] += 1

    def snapshot(self, saved: dict[int, Stamp]) -> Ftl:
        """What a controller rebuilds after a power cut: the map as of the last program that finished.

        Program units that were under way stay allocated and hold nothing. `saved` is what capacitors have put
        into an area of its own, in the order of the writes; a version given up by a discard is left out.
        """
        survivor = copy.deepcopy(self)
        survivor._pending = [0] * len(self._pending)
        survivor.saved = {u: stamp for u, stamp in saved.items() if stamp.sequence >= self._void_below(u)}
        last = max((stamp.sequence for stamp in survivor.saved.values()), default=0)
        survivor.last_sequence = max(self.last_sequence, last)
        return survivor

    def _void_below(self, unit: int) -> int:
        """Sequence below which a version of the unit is of no use."""
        mapped = self.stamp(unit)
        return mapped.sequence if mapped else self._discarded.get(unit, 0)
