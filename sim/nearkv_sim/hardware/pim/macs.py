"""MAC commands of one channel: the MAC unit's state machine, with steady stretches advanced at once.

Three stretches repeat exactly and are advanced without a step per command (`batched`): MACs to rows that
are all open; the sweep over the slots in which a buffer-die unit goes on to the next row; and the sweep that
opens all slots again after a refresh. A sweep is stepped through once and repeated from memory, in the same
cycles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nearkv_sim.hardware.dram.channel import MOST_POSTPONED
from nearkv_sim.hardware.pim.config import PimConfig
from nearkv_sim.hardware.pim.placement import Placement
from nearkv_sim.hardware.pim.rows import Record, RowKey, Rows
from nearkv_sim.hardware.pim.schedule import Macs

_LONG_AGO = -(10**9)


@dataclass(frozen=True)
class _Sweep:
    """Cycles of one MAC per slot, of the activations before them, and of all row commands on the bus.

    Relative to a reference cycle.
    """

    macs: tuple[int, ...]
    activates: tuple[int, ...]
    bus: tuple[int, ...]


class MacStream:
    """Issues MACs in order.

    Args:
        config: device.
        interval: cycles between MACs.
        batched: advance repeating stretches at once.
        record: takes every command.
        refresh: whether the DRAM is refreshed.

    Members:
        rows: the banks.
        issued: MACs so far.
        last: cycle of the last one.
    """

    def __init__(
        self, config: PimConfig, interval: int, record: Record, *, batched: bool, refresh: bool
    ) -> None:
        self._dram, self._mac = config.dram_config, config.commands.mac
        self._queue = config.queue_entries
        self._interval, self._batched, self._record = interval, batched, record
        self._place = Placement(config)
        self.rows = Rows(config, self._place.slots, record, refresh=refresh)
        self.issued = 0
        self.last = _LONG_AGO
        self._last_index = -1
        self._turn_start = 0  # number of the first MAC since which places follow each other: of a matrix
        self._last_uses = [0] * self._place.slots  # by slot: cycle of its last MAC before that one
        self._steady_since = 0  # number of the first MAC from which on all distances are the interval
        self._runs: deque[tuple[int, int, int]] = deque(maxlen=4 * (self._queue + self._place.slots))
        self._sweeps: dict[str, _Sweep] = {}
        settle = self._dram.t_rc + self._dram.t_rp
        self._settled_macs = 2 * self._place.slots + -(-settle // interval)

    def cycle_of(self, number: int) -> int:
        """Cycle of the MAC of that number, among the last ones."""
        for first, cycle, _ in reversed(self._runs):
            if number >= first:
                return cycle + (number - first) * self._interval
        return 0

    def issue(self, macs: Macs, barrier: int) -> list[tuple[int, int]]:
        """Issue MACs from cycle `barrier` on; returns (first cycle, count) of every stretch.

        ValueError if the timings leave no room for a MAC between refreshes.
        """
        stretches: list[tuple[int, int]] = []
        index, end = macs.first, macs.first + macs.count
        if index != self._last_index + 1:
            self._end_turn()
        stalled = 0  # steps in a row that a refresh has cut off
        while index < end:
            row = (macs.matrix, self._place.row(index))
            sweep = self._sweep_kind(index, end, row, barrier)
            if sweep:
                count = self._sweep(sweep, index, row, barrier, stretches)
            else:
                count = self._step(index, end, row, barrier, stretches)
            index += count
            stalled = 0 if count else stalled + 1
            if stalled > MOST_POSTPONED:
                raise ValueError(
                    f"t_refi is {self._dram.t_refi}; allowed: enough for a MAC between refreshes, which the"
                    " other timings do not leave"
                )
        return stretches

    def _step(self, index: int, end: int, row: RowKey, barrier: int, stretches: list[tuple[int, int]]) -> int:
        """Issue one MAC, or as many as can be at once; returns how many, 0 after a refresh."""
        place, rows, interval = self._place, self.rows, self._interval
        slot = rows.slots[place.slot(index)]
        if slot.row != row:
            wish = self.cycle_of(self.issued - self._queue) + 1 if self.issued >= self._queue else 0
            rows.open(slot, row, place.address(index, row[0]), wish, self._last_use(index))
        path = place.data_path(index)
        same_path = path >= 0 and self._last_index >= 0 and path == place.data_path(self._last_index)
        distance = max(interval, self._dram.t_ccd_l) if same_path else interval
        cycle = max(barrier, self.last + distance, slot.mac_from)
        if cycle >= rows.refresh_at:
            rows.refresh(self.last)
            return 0
        count = 1
        if self._batched and rows.held[row] == place.slots_per_row:
            before_refresh = -(-(rows.refresh_at - cycle) // interval)
            count = min(place.left_in_row(index), end - index, before_refresh)
        self._note(index, cycle, count, stretches)
        if place.slots_per_row == 1:
            slot.precharge_from = max(slot.precharge_from, self.last + self._dram.t_rtp)
        if not self._batched:
            self._record(cycle, self._mac, place.address(index, row[0]))
        return count

    def _last_use(self, index: int) -> int:
        """Cycle of the last MAC on the slot of the MAC that comes next; 0 where the slot itself knows."""
        slots = self._place.slots_per_row
        if slots == 1:
            return 0
        if self.issued - self._turn_start >= slots:
            return self.cycle_of(self.issued - slots)
        return self._last_uses[self._place.slot(index)]

    def _end_turn(self) -> None:
        """Another matrix begins: note when the present one used each slot last."""
        count = min(self.issued - self._turn_start, self._place.slots_per_row)
        for back in range(count):
            slot = self._place.slot(self._last_index - back)
            self._last_uses[slot] = self.cycle_of(self.issued - 1 - back)
        self._turn_start = self.issued

    def _note(self, index: int, cycle: int, count: int, stretches: list[tuple[int, int]]) -> None:
        assert cycle >= self.last + self._interval, "MACs closer than their interval"
        assert cycle < self.rows.refresh_at, "a MAC after a refresh is due"
        if cycle != self.last + self._interval:
            self._steady_since = self.issued
        self._runs.append((self.issued, cycle, count))
        stretches.append((cycle, count))
        self.issued += count
        self.last = cycle + (count - 1) * self._interval
        self._last_index = index + count - 1

    def _sweep_kind(self, index: int, end: int, row: RowKey, barrier: int) -> str:
        """Which repeating sweep over all slots starts here; empty for none."""
        place, rows = self._place, self.rows
        slots = place.slots_per_row
        if not self._batched or slots == 1 or end - index < slots or rows.held[row]:
            return ""
        before = (row[0], row[1] - 1)
        settled = self.issued - self._steady_since >= self._settled_macs
        if settled and rows.held[before] == slots and barrier <= self.last + self._interval:
            return "next row" if self._last_index == index - 1 else ""
        opens_from = rows.slots[0].activate_from
        free_from = max(barrier, self.last + self._dram.t_ccd_l) - self._dram.t_rcd_read
        if not rows.held and self.last < opens_from and free_from <= opens_from:
            same = all(slot.activate_from == opens_from for slot in rows.slots)
            return "after refresh" if same and place.left_in_row(index) >= slots else ""
        return ""

    def _sweep(
        self, kind: str, index: int, row: RowKey, barrier: int, stretches: list[tuple[int, int]]
    ) -> int:
        """One MAC per slot from memory, or stepped through to be remembered; returns how many."""
        place, rows = self._place, self.rows
        slots = place.slots_per_row
        reference = self.last if kind == "next row" else rows.slots[0].activate_from
        known = self._sweeps.get(kind)
        if known is None:
            refresh_at, cycles, activates = rows.refresh_at, [], []
            taken = rows.bus.taken()
            for offset in range(slots):
                if not self._step(index + offset, index + offset + 1, row, barrier, stretches):
                    return offset
                cycles.append(self.last - reference)
                slot = rows.slots[place.slot(index + offset)]
                activates.append(slot.mac_from - self._dram.t_rcd_read - reference)
            if rows.refresh_at == refresh_at:
                bus = sorted(cycle - reference for cycle in rows.bus.taken() - taken)
                self._sweeps[kind] = _Sweep(tuple(cycles), tuple(activates), tuple(bus))
            return slots
        if reference + known.macs[-1] >= rows.refresh_at:
            return self._step(index, index + 1, row, barrier, stretches)
        rows.bus.occupy(reference + cycle for cycle in known.bus)
        for offset, (mac, activate) in enumerate(zip(known.macs, known.activates, strict=True)):
            rows.note_open(rows.slots[place.slot(index + offset)], row, reference + activate)
            self._note(index + offset, reference + mac, 1, stretches)
        return slots
