"""The drive: commands in, data over the link out, NAND behind it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from nearkv_sim.hardware.link import Direction, Link
from nearkv_sim.hardware.link_clock import now_ps
from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.ssd.cache import RecentKeys
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.ftl import Ftl, Place, Stamp
from nearkv_sim.hardware.ssd.nand import NandArray
from nearkv_sim.hardware.ssd.writer import Writer

__all__ = ["Ssd"]

Steps = Generator[simpy.Event, Any, None]


class Ssd:
    """One NVMe controller with its NAND.

    Timing: a command passes the front end, one every `command_interval_ps`, then costs its firmware time.
    A read then splits into rows; every row is read (after its map entry, if that is not cached), crosses its
    channel, then the link, independently of the others, and the command ends with the last of them. Reads
    that the write buffer or the read buffer holds go straight to the link. A write is acknowledged when its
    last byte is in the write buffer, and waits for space there; see `nearkv_sim.hardware.ssd.writer`.

    Commands raise ValueError for a range outside the drive, an empty one, or data of over
    `max_transfer_bytes`, and RuntimeError after a power cut. Those under way at a power cut never end.

    Args:
        env: time in integer ps.
        config: the drive.
        link: payload of all commands; OUT is towards the host. May be shared with other devices.
        ftl: state of the same drive to start from, ValueError for another's; an empty drive if None.

    Members:
        nand, ftl, writer: parts, for their counters.
        host_read_bytes, host_write_bytes: of finished commands.

    """

    def __init__(self, env: simpy.Environment, config: SsdConfig, link: Link, ftl: Ftl | None = None) -> None:
        """Idle, with empty caches."""
        self._env, self.config, self._link = env, config, link
        self.ftl = ftl or Ftl(config)
        if self.ftl.config != config:
            raise ValueError("ftl is of another drive; allowed: the state of a drive with the same config")
        self.nand = NandArray(env, config)
        self.writer = Writer(env, config, self.ftl, self.nand)
        self._front_free_ps = 0
        self._map_cache = RecentKeys(config.mapping_cache_bytes // config.mapping_entry_bytes)
        self._read_buffer = RecentKeys(config.read_buffer_bytes // config.mapping_unit_bytes)
        self._sequence = self.ftl.last_sequence
        self._powered = True
        self.host_read_bytes = self.host_write_bytes = 0

    def read(self, start_bytes: int, nbytes: int) -> simpy.Process:
        """Read command; the process ends with its completion."""
        self._check(start_bytes, nbytes)
        return self._command(self._read(start_bytes, nbytes))

    def write(self, start_bytes: int, nbytes: int, *, tag: int = 0, fua: bool = False) -> simpy.Process:
        """Write command; `tag` stands for the data. With force unit access it ends when they are durable."""
        self._check(start_bytes, nbytes)
        return self._command(self._write(start_bytes, nbytes, tag, fua))

    def discard(self, start_bytes: int, nbytes: int) -> simpy.Process:
        """Dataset management command (deallocate) for the whole units in a range of any length.

        Takes the firmware time of a write; the map forgets them, durably, when the command ends.
        """
        self._require_power()
        require_integer("start_bytes", start_bytes, 0, self.config.logical_bytes - 1)
        require_integer("nbytes", nbytes, 1, self.config.logical_bytes - start_bytes)
        return self._command(self._discard(start_bytes, nbytes))

    def flush(self) -> simpy.Process:
        """Flush command; ends when every write that had ended before is durable."""
        self._require_power()
        return self._command(self._flush())

    def power_cut(self) -> Ftl:
        """Lose power now; returns the state that a new `Ssd` starts from.

        Only what capacitors protect, and what a finished program put into NAND, is in it.
        """
        self._require_power()
        self._powered = False
        return self.ftl.snapshot(self.writer.buffer.newest() if self.config.power_loss_protection else {})

    def _command(self, steps: Steps) -> simpy.Process:
        def run() -> Steps:
            yield from steps
            if not self._powered:
                yield self._env.event()  # a dead drive completes nothing

        return self._env.process(run())

    def _require_power(self) -> None:
        if not self._powered:
            raise RuntimeError("the drive has lost power; start a new Ssd from what power_cut() returned")

    def _check(self, start_bytes: int, nbytes: int) -> None:
        self._require_power()
        require_integer("start_bytes", start_bytes, 0, self.config.logical_bytes - 1)
        limit_bytes = min(self.config.max_transfer_bytes, self.config.logical_bytes - start_bytes)
        require_integer("nbytes", nbytes, 1, limit_bytes)

    def _front_end(self, firmware_ps: int) -> simpy.Event:
        begin_ps = max(now_ps(self._env), self._front_free_ps)
        self._front_free_ps = begin_ps + self.config.command_interval_ps
        return self._env.timeout(begin_ps + firmware_ps - self._env.now)

    def _send(self, nbytes: int, direction: Direction) -> simpy.Event:
        start_ps = now_ps(self._env)
        return self._env.timeout(self._link.transfer(start_ps, nbytes, direction) - start_ps)

    def _read(self, start_bytes: int, nbytes: int) -> Steps:
        yield self._front_end(self.config.read_firmware_ps)
        buffered = nbytes >= self.config.read_buffer_min_bytes
        held_bytes, rows = self._split(start_bytes, nbytes, buffered)
        events: list[simpy.Event] = [self._send(held_bytes, Direction.OUT)] if held_bytes else []
        if len(rows) == 1 and not events:
            yield from self._read_row(*rows[0])
        else:
            events += [self._env.process(self._read_row(*row)) for row in rows]
            yield self._env.all_of(events)
        self.host_read_bytes += nbytes

    def _split(
        self, start_bytes: int, nbytes: int, buffered: bool
    ) -> tuple[int, list[tuple[Place, int, bool]]]:
        """Bytes that need no NAND; for every row its place, bytes and whether its map entry misses."""
        unit_bytes = self.config.mapping_unit_bytes
        held_bytes = 0
        rows: dict[int, tuple[Place, int, bool]] = {}
        end_bytes = start_bytes + nbytes
        for unit in range(start_bytes // unit_bytes, -(-end_bytes // unit_bytes)):
            size = min(end_bytes, (unit + 1) * unit_bytes) - max(start_bytes, unit * unit_bytes)
            slot = self.ftl.locate(unit)
            if slot is None or unit in self.writer.buffer or (buffered and self._read_buffer.use(unit)):
                held_bytes += size
                continue
            if buffered:
                self._read_buffer.add(unit)
            place = self.ftl.place(slot)
            _, sum_bytes, missing = rows.get(place.row, (place, 0, False))
            rows[place.row] = (place, sum_bytes + size, missing or self._map_misses(unit))
        return held_bytes, list(rows.values())

    def _map_misses(self, unit: int) -> bool:
        if not self.config.mapping_cache_bytes or self._map_cache.use(unit):
            return False
        self._map_cache.add(unit)
        return True

    def _read_row(self, place: Place, nbytes: int, map_missing: bool) -> Steps:
        if map_missing:
            # Map pages are spread over the dies like any data; where exactly does not matter for time.
            die = place.row * 0x9E3779B1 % 2**32 % self.config.dies  # Knuth's multiplicative hash
            yield self.nand.read(die, 0, self.config.mapping_read_bytes)
        yield self.nand.read(place.die, place.page_type, nbytes)
        yield self._send(nbytes, Direction.OUT)

    def _write(self, start_bytes: int, nbytes: int, tag: int, fua: bool) -> Steps:
        yield self._front_end(self.config.write_firmware_ps)
        unit_bytes, end_bytes = self.config.mapping_unit_bytes, start_bytes + nbytes
        units = range(start_bytes // unit_bytes, -(-end_bytes // unit_bytes))
        step = self.ftl.unit_slots
        arrivals: list[simpy.Event] = []
        for first in range(units.start, units.stop, step):
            piece = range(first, min(first + step, units.stop))
            yield self.writer.reserve(len(piece))
            size = min(end_bytes, piece.stop * unit_bytes) - max(start_bytes, first * unit_bytes)
            arrivals.append(self._env.process(self._receive(piece, size, tag, start_bytes, end_bytes)))
        yield self._env.all_of(arrivals)
        self.host_write_bytes += nbytes
        if fua:
            yield from self.writer.make_durable(units)

    def _receive(self, piece: range, nbytes: int, tag: int, start_bytes: int, end_bytes: int) -> Steps:
        """Fetch a piece from the host; complete units that it covers in part from NAND."""
        yield self._send(nbytes, Direction.IN)
        unit_bytes = self.config.mapping_unit_bytes
        for unit in dict.fromkeys((piece[0], piece[-1])):
            slot = self.ftl.locate(unit)
            partial = unit * unit_bytes < start_bytes or (unit + 1) * unit_bytes > end_bytes
            if partial and slot is not None and unit not in self.writer.buffer:
                place = self.ftl.place(slot)
                yield self.nand.read(place.die, place.page_type, unit_bytes)
        for unit in piece:
            self._sequence += 1
            self._read_buffer.discard(unit)
            self._map_cache.add(unit)
            self.writer.put(unit, Stamp(self._sequence, tag))

    def _discard(self, start_bytes: int, nbytes: int) -> Steps:
        yield self._front_end(self.config.write_firmware_ps)
        unit_bytes = self.config.mapping_unit_bytes
        self._sequence += 1
        for unit in range(-(-start_bytes // unit_bytes), (start_bytes + nbytes) // unit_bytes):
            self._read_buffer.discard(unit)
            self.writer.drop(unit)
            self.ftl.discard(unit, self._sequence)

    def _flush(self) -> Steps:
        yield self._front_end(self.config.write_firmware_ps)
        yield from self.writer.make_durable(None)
