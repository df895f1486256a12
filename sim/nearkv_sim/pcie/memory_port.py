"""The card's memory behind the kernel's AXI4 masters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiResp

from nearkv_sim.card.kernel_cycles import READ_LATENCY_PS
from nearkv_sim.card.memory import DeviceMemory, UnwrittenMemory


class _Beat(NamedTuple):
    due: int  # cycle
    address: int
    last: bool


class MemoryPort:
    """AXI4 subordinates in front of a `DeviceMemory`.

    Formula: reads and writes of whole beats; bytes never written read 0, as XRT leaves them; a burst that
    leaves the memory gets DECERR for each beat outside.
    Timing: a burst's first beat READ_LATENCY_PS after its address, rounded up to cycles, then a beat in every
    cycle; bursts of one identifier in order, those of two taking turns. Writes at a beat per cycle,
    acknowledged in the cycle after their last.

    Args:
        buses: with members named as in the AXI specification; all but the first only read.
        clk: rising edge.
        clock_ps: period.
        bus_bytes: of a beat.
        memory: as the attribute.

    Attributes:
        memory: what is read and written.
        cycles: clock cycles so far.
        active_cycle: the last in which a beat was transferred, or the kernel was told something.

    """

    def __init__(
        self, buses: Sequence[Any], clk: Any, clock_ps: int, bus_bytes: int, memory: DeviceMemory
    ) -> None:
        self._clk, self._bus_bytes = clk, bus_bytes
        self._latency = -(-READ_LATENCY_PS // clock_ps)
        self.memory = memory
        self.cycles = self.active_cycle = 0
        for bus in buses:
            bus.arready.value, bus.rvalid.value = 1, 0
            cocotb.start_soon(self._run_reads(bus))
        first = buses[0]
        first.awready.value = 1
        first.wready.value = first.bvalid.value = 0
        cocotb.start_soon(self._run_writes(first))

    def idle_cycles(self) -> int:
        """Cycles since anything was transferred."""
        return self.cycles - self.active_cycle

    async def _run_reads(self, bus: Any) -> None:
        edge = RisingEdge(self._clk)
        owed: tuple[deque[_Beat], deque[_Beat]] = (deque(), deque())  # by identifier
        offered: int | None = None  # identifier of the beat on the bus
        turn = 0
        for cycle in count():
            await edge
            self.cycles = cycle
            if bus.arvalid.value:
                beats = self._beats(int(bus.araddr.value), int(bus.arlen.value))
                due = cycle + self._latency
                owed[int(bus.arid.value)].extend(_Beat(due, at, at == beats[-1]) for at in beats)
                self.active_cycle = cycle
            if offered is not None and bus.rready.value:
                owed[offered].popleft()
                offered = None
                self.active_cycle = cycle
            if offered is None:
                ready = [i for i in (turn, 1 - turn) if owed[i] and owed[i][0].due <= cycle]
                if ready:
                    offered, turn = ready[0], 1 - ready[0]
                    beat = owed[offered][0]
                    bus.rdata.value, bus.rresp.value = self._read(beat.address)
                    bus.rid.value, bus.rlast.value = offered, int(beat.last)
                bus.rvalid.value = int(bool(ready))

    async def _run_writes(self, bus: Any) -> None:
        edge = RisingEdge(self._clk)
        bursts: deque[tuple[Iterator[int], int]] = deque()  # addresses of the beats, identifier
        answers: deque[tuple[int, int]] = deque()  # identifier, response
        response = int(AxiResp.OKAY)
        ready = answering = False
        while True:
            await edge
            if bus.awvalid.value:
                beats = self._beats(int(bus.awaddr.value), int(bus.awlen.value))
                bursts.append((iter(beats), int(bus.awid.value)))
            if ready and bus.wvalid.value:
                self.active_cycle = self.cycles
                addresses, identifier = bursts[0]
                status = self._write(next(addresses), int(bus.wdata.value), int(bus.wstrb.value))
                response = max(response, status)
                if bus.wlast.value:
                    bursts.popleft()
                    answers.append((identifier, response))
                    response = int(AxiResp.OKAY)
            ready = bool(bursts)
            bus.wready.value = int(ready)
            if answering and bus.bready.value:
                answering = False
            if answers and not answering:
                bus.bid.value, bus.bresp.value = answers.popleft()
                answering = True
            bus.bvalid.value = int(answering)

    def _beats(self, address: int, length: int) -> range:
        first = address // self._bus_bytes * self._bus_bytes
        return range(first, first + (length + 1) * self._bus_bytes, self._bus_bytes)

    def _read(self, address: int) -> tuple[int, int]:
        try:
            content = read_as_it_is(self.memory, address, self._bus_bytes)
        except ValueError:
            return 0, int(AxiResp.DECERR)
        return int.from_bytes(content, "little"), int(AxiResp.OKAY)

    def _write(self, address: int, data: int, strobes: int) -> int:
        content = np.frombuffer(data.to_bytes(self._bus_bytes, "little"), np.uint8)
        try:
            if strobes == (1 << self._bus_bytes) - 1:
                self.memory.write(address, content)
            else:
                for lane in (lane for lane in range(self._bus_bytes) if strobes >> lane & 1):
                    self.memory.write(address + lane, content[lane : lane + 1])
        except ValueError:
            return int(AxiResp.DECERR)
        return int(AxiResp.OKAY)


def read_as_it_is(memory: DeviceMemory, address: int, nbytes: int) -> bytes:
    """Bytes of the memory, 0 where nothing was written; ValueError outside."""
    try:
        return memory.read(address, nbytes).tobytes()
    except UnwrittenMemory:
        if nbytes == 1:
            return b"\0"
        half = nbytes // 2
        return read_as_it_is(memory, address, half) + read_as_it_is(memory, address + half, nbytes - half)
