"""State machine of one PIM channel: tiles, barriers, MACs and the moves beside them; in clock cycles."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from nearkv_sim.hardware.dram.command import Address, Command, Issue
from nearkv_sim.hardware.pim.config import PimConfig
from nearkv_sim.hardware.pim.data_path import DataPath
from nearkv_sim.hardware.pim.macs import MacStream
from nearkv_sim.hardware.pim.schedule import Move, Tile


@dataclass
class PimCounters:
    """Commands issued so far.

    Attributes:
        activates: banks opened.
        macs: MAC commands.
        moves: commands on the data path.
        loads: those of `moves` that come over the interface.
        refreshes: REF commands.

    """

    activates: int = 0
    macs: int = 0
    moves: int = 0
    loads: int = 0
    refreshes: int = 0


class PimChannel:
    """One channel's command streams. `run` takes tiles and returns the cycle after the last command.

    The controller sees `queue_entries` requests: rows are opened that far ahead, and moves wait until they
    are in the queue. MAC commands go in order; moves in the order in which their data path is free. A
    refresh stops everything until its commands are out, then moves go on and rows are opened again.

    Args:
        config: device.
        power_capped: use the interval of the power cap.
        batched: advance repeating stretches at once, to the same cycles; must be off to record.
        trace: list that takes every command, unsorted.
        refresh: whether the DRAM is refreshed.

    ValueError for a trace of a batched channel.
    """

    def __init__(
        self,
        config: PimConfig,
        *,
        power_capped: bool = False,
        batched: bool = True,
        trace: list[Issue] | None = None,
        refresh: bool = True,
    ) -> None:
        if trace is not None and batched:
            raise ValueError("trace is a list with batched True; allowed: a trace of single commands")
        self._queue = config.queue_entries
        self._interval = config.interval(power_capped=power_capped)
        self._trace = trace
        self._macs = MacStream(config, self._interval, self._record, batched=batched, refresh=refresh)
        self._rows = self._macs.rows
        self._path = DataPath(config.dram_config)
        self._one_bus = not config.dram_config.separate_buses
        self._barrier = 0
        self._moves = self._loads = 0

    @property
    def counters(self) -> PimCounters:
        """Commands so far."""
        rows = self._rows
        return PimCounters(rows.activates, self._macs.issued, self._moves, self._loads, rows.refreshes)

    def run(self, tiles: Iterable[Tile]) -> int:
        """Serve tiles, each behind the barrier of the one before."""
        for tile in tiles:
            del self._rows.blocked[:-2]
            start = self._barrier
            visible, starts, counts = start, [], []
            if tile.macs is not None:
                first = self._macs.issued
                stretches = self._macs.issue(tile.macs, start)
                starts, counts = [cycle for cycle, _ in stretches], [count for _, count in stretches]
                hidden = tile.macs.count - self._queue
                if hidden >= 0:
                    visible = self._macs.cycle_of(first + hidden) + 1
                self._barrier = self._macs.last + 1
            ended = self._issue_moves(tile.before, start, starts, counts)
            ended = max(ended, self._issue_moves(tile.after, visible, starts, counts))
            self._barrier = max(self._barrier, ended)
            assert self._barrier >= start, "a barrier before the one before it"
        return self._barrier

    def _issue_moves(
        self, moves: tuple[Move, ...], earliest: int, starts: list[int], counts: list[int]
    ) -> int:
        """Issue moves in cycles that no MAC takes; returns the cycle after the last."""
        pending = list(moves)
        ended = 0
        while pending:
            choice = self._path.choose(pending, self._queue, earliest)
            cycle = self._free_cycle(choice.cycle, starts, counts)
            if self._one_bus and self._rows.bus.busy(cycle):
                earliest = cycle + 1
                continue
            if cycle >= self._rows.refresh_at:
                self._rows.refresh(self._macs.last)
                continue
            move = pending.pop(choice.place)
            self._path.issue(move, cycle)
            if self._one_bus:
                self._rows.bus.place(cycle)
            self._record(cycle, move.command, Address(0, move.rank, move.group))
            self._moves += 1
            self._loads += move.command is Command.WR_GB
            ended = max(ended, cycle + 1)
        return ended

    def _free_cycle(self, cycle: int, starts: list[int], counts: list[int]) -> int:
        """First cycle from `cycle` in which neither a MAC is issued nor a refresh stops the channel."""
        while True:
            for start, end in self._rows.blocked:
                if start <= cycle <= end:
                    cycle = end + 1
            index = bisect_right(starts, cycle) - 1
            if index < 0:
                return cycle
            offset = cycle - starts[index]
            if offset % self._interval or offset // self._interval >= counts[index]:
                return cycle
            cycle += 1

    def _record(self, cycle: int, command: Command, address: Address) -> None:
        if self._trace is not None:
            self._trace.append(Issue(cycle, command, address))
