"""Row state of one PIM channel: slots of banks that open together, their timing, refresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from nearkv_sim.hardware.dram.bus import CommandBus
from nearkv_sim.hardware.dram.command import Address, Command
from nearkv_sim.hardware.pim.config import PimConfig

RowKey = tuple[int, int]  # matrix, row
Record = Callable[[int, Command, Address], None]
NEVER = 1 << 62


@dataclass
class Slot:
    """Banks that one activation opens together: earliest cycles of each command, and the row they hold."""

    row: RowKey | None = None
    mac_from: int = 0
    precharge_from: int = 0
    activate_from: int = 0


class Rows:
    """Opens and closes rows and refreshes, on the row command bus.

    Args:
        config: device.
        slots: of the channel.
        record: takes every command.
        refresh: whether the DRAM is refreshed.

    Members:
        bus: of row commands, or of all.
        slots: their state.
        held: how many slots hold a row.
        refresh_at: cycle in which the next refresh stops the channel.
        blocked: first and last cycle of each such stop.
        activates, refreshes: banks activated, REF commands.
    """

    def __init__(self, config: PimConfig, slots: int, record: Record, *, refresh: bool) -> None:
        self._dram = config.dram_config
        self._commands = config.commands
        self._banks_per_activate = config.banks_per_activate
        self._record = record
        self.bus = CommandBus()
        self.slots = [Slot() for _ in range(slots)]
        self.held: Counter[RowKey] = Counter()
        self.refresh_at = self._dram.t_refi if refresh else NEVER
        self.blocked: list[tuple[int, int]] = []
        self.activates = self.refreshes = 0

    def open(self, slot: Slot, row: RowKey, address: Address, wish: int, last_mac: int) -> None:
        """Open a row as soon as its first MAC is in the queue and the banks allow it.

        Args:
            slot: to open.
            row: to open.
            address: of a bank of the slot.
            wish: cycle in which the MAC came into the queue.
            last_mac: cycle of the slot's last MAC, or later.

        """
        dram, bus = self._dram, self.bus
        if slot.row is not None:
            close = max(wish, slot.precharge_from, last_mac + dram.t_rtp)
            if close >= self.refresh_at:
                self.refresh(last_mac)
            else:
                cycle = bus.place(close)
                self._record(cycle, self._commands.precharge, address)
                self._close(slot)
                slot.activate_from = max(slot.activate_from, cycle + dram.t_rp)
        if max(wish, slot.activate_from) >= self.refresh_at:
            self.refresh(last_mac)
        cycle = bus.place(max(wish, slot.activate_from), dram.activate_cycles)
        self._record(cycle, self._commands.activate, address)
        self.note_open(slot, row, cycle)

    def note_open(self, slot: Slot, row: RowKey, cycle: int) -> None:
        """The slot was activated in `cycle`."""
        dram = self._dram
        if slot.row is not None:
            self._close(slot)
        slot.row = row
        self.held[row] += 1
        self.activates += self._banks_per_activate
        slot.mac_from = cycle + dram.t_rcd_read
        slot.precharge_from = cycle + dram.t_ras
        slot.activate_from = cycle + dram.t_rc

    def refresh(self, last_mac: int) -> None:
        """Close every bank and refresh every pseudo-channel; `last_mac`: cycle of the channel's last MAC."""
        dram, due = self._dram, self.refresh_at
        start = due
        open_slots = [slot for slot in self.slots if slot.row is not None]
        if open_slots:
            earliest = max(slot.precharge_from for slot in open_slots)
            close = self.bus.place(max(due, earliest, last_mac + dram.t_rtp))
            self._record(close, Command.PREA, Address())
            start = close + dram.t_rp
        start = max([start, *(slot.activate_from for slot in self.slots)])
        cycle = start
        for pseudo_channel in range(dram.pseudo_channels):
            cycle = self.bus.place(start)
            self._record(cycle, Command.REF, Address(pseudo_channel))
            self.refreshes += 1
        for slot in self.slots:
            slot.row = None
            slot.activate_from = cycle + dram.t_rfc
        self.held.clear()
        self.blocked.append((due, cycle))
        self.refresh_at += dram.t_refi

    def _close(self, slot: Slot) -> None:
        if slot.row is not None:
            self.held[slot.row] -= 1
            if not self.held[slot.row]:
                del self.held[slot.row]
            slot.row = None
