"""From the write buffer into NAND, and garbage collection."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import simpy

from nearkv_sim.hardware.ssd.cache import WriteBuffer
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.ftl import Ftl, Place, Stamp
from nearkv_sim.hardware.ssd.nand import NandArray

__all__ = ["Writer"]

Steps = Generator[simpy.Event, Any, None]
Units = list[tuple[int, Stamp]]


class Writer:
    """Programs buffered units, and frees superblocks when they run short.

    Timing: a program starts as soon as a whole program unit waits, on the next die in turn. A unit leaves the
    buffer when it is in NAND. Below `gc_low_superblocks` free superblocks the one with the fewest valid units
    is collected (greedy): its rows are read, its units programmed elsewhere, then all its blocks erased; this
    goes on until `gc_high_superblocks` are free or no superblock would gain a program unit. The host waits
    while only two are free. Collection shares dies and channels with everything else.

    Numerics: a forced program of fewer units than fit is padded, and counts as a full one.

    Members:
        buffer: units not yet in NAND.

    """

    def __init__(self, env: simpy.Environment, config: SsdConfig, ftl: Ftl, nand: NandArray) -> None:
        """A buffer that holds what was saved at a power cut."""
        self._env, self._config, self._ftl, self._nand = env, config, ftl, nand
        self.buffer = WriteBuffer()
        capacity = config.write_buffer_bytes // config.mapping_unit_bytes
        self._space = simpy.Container(env, capacity, init=capacity - len(ftl.saved))
        self._programs: dict[simpy.Process, Units] = {}
        self._collecting = False
        self._freed = env.event()  # fires, and is renewed, whenever a superblock is free again
        for unit, stamp in ftl.saved.items():
            self.buffer.put(unit, stamp)
        ftl.saved.clear()
        while self.buffer.waiting >= ftl.unit_slots:
            self._start_program()

    def reserve(self, units: int) -> simpy.Event:
        """Space for a piece of a write; fires when there is."""
        return self._space.get(units)

    def put(self, unit: int, stamp: Stamp) -> None:
        """A unit has arrived in the space reserved for it."""
        self._ftl.host_units += 1
        if self.buffer.put(unit, stamp):
            self._space.put(1)
        if self.buffer.waiting >= self._ftl.unit_slots:
            self._start_program()

    def drop(self, unit: int) -> None:
        """The host has given the unit up."""
        if self.buffer.drop(unit):
            self._space.put(1)

    def make_durable(self, units: Iterable[int] | None) -> Steps:
        """Wait until these units, or all, survive a power cut: at once if capacitors protect the buffer."""
        if self._config.power_loss_protection:
            return
        while self.buffer.waiting:
            self._start_program()
        wanted = None if units is None else set(units)
        yield self._env.all_of(
            [
                process
                for process, programming in self._programs.items()
                if wanted is None or any(unit in wanted for unit, _ in programming)
            ]
        )

    def _start_program(self) -> None:
        units = self.buffer.take(self._ftl.unit_slots)
        process = self._env.process(self._program(units))
        self._programs[process] = units

    def _program(self, units: Units) -> Steps:
        while not self._ftl.can_allocate("host"):
            self._start_collection()
            yield self._freed
        yield from self._program_units("host", units)
        self._start_collection()
        self.buffer.programmed(units)
        self._space.put(len(units))
        assert self._env.active_process is not None
        del self._programs[self._env.active_process]

    def _program_units(self, stream: str, units: Units) -> Steps:
        slot = self._ftl.allocate(stream)
        yield self._nand.program(self._ftl.place(slot).die, lambda: self._ftl.commit(slot, units))

    def _start_collection(self) -> None:
        if not self._collecting and self._ftl.free_superblocks < self._config.gc_low_superblocks:
            self._collecting = True
            self._env.process(self._collect())

    def _collect(self) -> Steps:
        while self._ftl.free_superblocks < self._config.gc_high_superblocks:
            victim = self._ftl.victim()
            if victim is None:
                break
            yield from self._move_valid(victim)
            yield self._env.all_of([self._nand.erase(die) for die in range(self._config.dies)])
            self._ftl.release(victim)
            freed, self._freed = self._freed, self._env.event()
            freed.succeed()
        self._collecting = False

    def _move_valid(self, victim: int) -> Steps:
        """Read what is still valid, in batches of one program unit a die, and program it elsewhere."""
        batch = self._config.dies * self._ftl.unit_slots
        while units := self._ftl.valid_units(victim):
            moving = units[:batch]
            rows: dict[Place, int] = {}
            for unit in moving:
                slot = self._ftl.locate(unit)
                assert slot is not None
                place = self._ftl.place(slot)
                rows[place] = rows.get(place, 0) + self._config.mapping_unit_bytes
            copies = [(unit, stamp) for unit in moving if (stamp := self._ftl.stamp(unit))]
            yield self._env.all_of([self._nand.read(p.die, p.page_type, size) for p, size in rows.items()])
            slots = self._ftl.unit_slots
            pieces = [copies[first : first + slots] for first in range(0, len(copies), slots)]
            yield self._env.all_of(
                [self._env.process(self._program_units("collector", piece)) for piece in pieces]
            )
