"""Bank state machines of one pseudo-channel and the controller that feeds them reads and writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from nearkv_sim.hardware.dram.bus import CommandBus
from nearkv_sim.hardware.dram.command import Address, Command, Issue
from nearkv_sim.hardware.dram.config import DramConfig
from nearkv_sim.hardware.dram.constraints import read_to_write_cycles

QUEUE_ENTRIES = 32  # requests the controller sees at a time: Ramulator 2's request buffer
LONG_AGO = -(10**9)
MOST_POSTPONED = 8  # refreshes in a row without an access between them: JESD79-4 4.26 lets no more be owed


@dataclass(frozen=True)
class Access:
    """One column command: where, and whether it writes."""

    address: Address
    write: bool = False


@dataclass
class _Bank:
    """Earliest cycles at which the bank takes each command, and the row it holds."""

    row: int | None = None
    read_from: int = 0
    write_from: int = 0
    precharge_from: int = 0
    activate_from: int = 0
    queued: int = 0  # accesses to the open or coming row that have not been issued


@dataclass
class DramCounters:
    """Commands issued so far, for energy."""

    activates: int = 0
    reads: int = 0
    writes: int = 0
    refreshes: int = 0


@dataclass
class _Rank:
    """What the ranks' rules remember: cycles of ACT, and of the last read and write by group."""

    activates: deque[int] = field(default_factory=lambda: deque([LONG_AGO] * 4, maxlen=4))
    group_activate: dict[int, int] = field(default_factory=dict)
    last: dict[tuple[bool, int | None], int] = field(default_factory=dict)  # (write, group); None: any group


class DramChannel:
    """One pseudo-channel: accesses are issued in order, rows are opened ahead within the request queue.

    Open-page policy. Every t_refi all banks are closed and all ranks refreshed at once. Timing: integer
    clock cycles; `run` continues where the last call ended. Every command is recorded if `trace` is a list.
    """

    def __init__(self, config: DramConfig, trace: list[Issue] | None = None, *, refresh: bool = True) -> None:
        self.config = config
        self.counters = DramCounters()
        self._trace = trace
        self._refresh_at = config.t_refi if refresh else None
        self._banks: dict[tuple[int, int, int], _Bank] = {}
        self._ranks = [_Rank() for _ in range(config.ranks)]
        self._rows_bus = CommandBus()
        self._columns_bus = CommandBus() if config.separate_buses else self._rows_bus
        self._last_bus = {False: LONG_AGO, True: LONG_AGO}  # any rank's last read and write
        self._now = 0

    def run(self, accesses: Iterable[Access]) -> int:
        """Serve the accesses; returns the cycle in which the last data have passed the interface.

        ValueError if the timings leave no room for an access between refreshes.
        """
        config = self.config
        waiting: deque[Access] = deque()  # in the queue, their row not asked for yet
        ready: deque[Access] = deque()
        source = iter(accesses)
        finished = self._now
        exhausted = False
        stalled = 0  # refreshes since the last access
        while True:
            while not exhausted and len(ready) + len(waiting) < QUEUE_ENTRIES:
                access = next(source, None)
                if access is None:
                    exhausted = True
                else:
                    waiting.append(access)
            self._open_rows(waiting, ready)
            if not ready:
                return finished
            access = ready.popleft()
            cycle = self._column_cycle(access)
            if self._refresh_at is not None and cycle >= self._refresh_at:
                stalled += 1
                if stalled > MOST_POSTPONED:
                    raise ValueError(
                        f"t_refi is {config.t_refi}; allowed: enough for an access between refreshes, which"
                        " the other timings do not leave"
                    )
                self._refresh()
                ready.appendleft(access)
                waiting.extendleft(reversed(ready))
                ready.clear()
                continue
            stalled = 0
            cycle = self._issue_column(access, cycle)
            latency = config.t_cwl if access.write else config.t_cl
            finished = cycle + latency + config.t_bl

    def _bank(self, address: Address) -> _Bank:
        return self._banks.setdefault((address.rank, address.group, address.bank), _Bank())

    def _record(self, cycle: int, command: Command, address: Address) -> None:
        if self._trace is not None:
            self._trace.append(Issue(cycle, command, address))

    def _open_rows(self, waiting: deque[Access], ready: deque[Access]) -> None:
        """Move accesses to `ready`, in order, opening their rows; stop at a bank that is still in use."""
        while waiting:
            address = waiting[0].address
            bank = self._bank(address)
            if bank.row != address.row:
                if bank.queued:
                    return
                self._open(bank, address)
            bank.queued += 1
            ready.append(waiting.popleft())

    def _open(self, bank: _Bank, address: Address) -> None:
        config = self.config
        if bank.row is not None:
            cycle = self._rows_bus.place(max(bank.precharge_from, self._now))
            self._record(cycle, Command.PRE, address)
            bank.activate_from = max(bank.activate_from, cycle + config.t_rp)
        rank = self._ranks[address.rank]
        earliest = max(
            bank.activate_from,
            self._now,
            rank.activates[-1] + config.t_rrd_s,
            rank.activates[0] + config.t_faw,
            rank.group_activate.get(address.group, LONG_AGO) + config.t_rrd_l,
        )
        cycle = self._rows_bus.place(earliest, config.activate_cycles)
        self._record(cycle, Command.ACT, address)
        rank.activates.append(cycle)
        rank.group_activate[address.group] = cycle
        self.counters.activates += 1
        bank.row = address.row
        bank.read_from = cycle + config.t_rcd_read
        bank.write_from = cycle + config.t_rcd_write
        bank.precharge_from = cycle + config.t_ras
        bank.activate_from = cycle + config.t_rc

    def _column_cycle(self, access: Access) -> int:
        """Earliest cycle of RD or WR, command bus aside."""
        config, address, write = self.config, access.address, access.write
        bank, last = self._bank(address), self._ranks[address.rank].last
        same_group = config.t_ccd_l_write if write else config.t_ccd_l
        earliest = max(
            self._now,
            bank.write_from if write else bank.read_from,
            self._last_bus[write] + config.t_bl,
            last.get((write, None), LONG_AGO) + config.t_ccd_s,
            last.get((write, address.group), LONG_AGO) + same_group,
        )
        if write:
            return max(earliest, self._last_bus[False] + read_to_write_cycles(config))
        data = config.t_cwl + config.t_bl
        return max(
            earliest,
            last.get((True, None), LONG_AGO) + data + config.t_wtr_s,
            last.get((True, address.group), LONG_AGO) + data + config.t_wtr_l,
        )

    def _issue_column(self, access: Access, earliest: int) -> int:
        config, address, write = self.config, access.address, access.write
        cycle = self._columns_bus.place(earliest, config.column_cycles)
        assert cycle >= max(self._now, self._last_bus[write] + config.t_bl), "accesses overlap on the bus"
        self._record(cycle, Command.WR if write else Command.RD, address)
        bank, last = self._bank(address), self._ranks[address.rank].last
        self._last_bus[write] = last[write, None] = last[write, address.group] = cycle
        recovery = config.t_cwl + config.t_bl + config.t_wr if write else config.t_rtp
        bank.precharge_from = max(bank.precharge_from, cycle + recovery)
        bank.queued -= 1
        self._now = cycle
        if write:
            self.counters.writes += 1
        else:
            self.counters.reads += 1
        return cycle

    def _refresh(self) -> None:
        config = self.config
        assert self._refresh_at is not None
        start = max(self._refresh_at, self._now)
        open_banks = [bank for bank in self._banks.values() if bank.row is not None]
        if open_banks:
            close = self._rows_bus.place(max(start, *(bank.precharge_from for bank in open_banks)))
            self._record(close, Command.PREA, Address())
            start = close + config.t_rp
        start = max([start, *(bank.activate_from for bank in self._banks.values())])
        cycle = self._rows_bus.place(start)
        self._record(cycle, Command.REF, Address())
        self.counters.refreshes += 1
        for bank in self._banks.values():
            bank.row, bank.queued = None, 0
            bank.activate_from = cycle + config.t_rfc
        self._refresh_at += config.t_refi
        self._now = cycle
