"""Memories for the kernel's bench: one that refuses what no job allows, and how fast it answers."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from itertools import count
from typing import Any, Protocol

import cocotb
from cocotb.triggers import RisingEdge

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.benches.axi_harness import Memory
from nearkv_sim.benches.kernel_jobs import Job
from nearkv_sim.card.card import MEMORY_BASE


class ReadMemory(Protocol):
    """What answers reads."""

    bus_bytes: int

    async def read(self, address: int, nbytes: int) -> bytes:
        """One beat."""


class SlowReads:
    """A memory's read side: each burst `latency_cycles` after its address, then a beat in every cycle.

    Bursts of one identifier come in order; of several that are due, each beat is drawn at random.

    Args:
        bus: AR and R.
        clk: rising edge.
        memory: what is read.
        latency_cycles: from an address to its first beat.
        rate: beats of so many cycles, at most.

    Attributes:
        beats: (cycle, identifier) of every beat taken.

    """

    def __init__(
        self, bus: Any, clk: Any, memory: ReadMemory, latency_cycles: int, rate: tuple[int, int]
    ) -> None:
        self._bus, self._clk, self._memory = bus, clk, memory
        self._latency_cycles, self._rate = latency_cycles, rate
        self.beats: list[tuple[int, int]] = []
        bus.arready.value, bus.rvalid.value, bus.rresp.value = 1, 0, 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        bus, bus_bytes = self._bus, self._memory.bus_bytes
        beats_of, cycles_of = self._rate
        owed: defaultdict[int, deque[tuple[int, int, bool]]] = defaultdict(deque)  # due cycle, address, last
        offered: int | None = None  # identifier of the beat on the bus
        for cycle in count():
            await RisingEdge(self._clk)
            if bus.arvalid.value == 1:
                start, beats = int(bus.araddr.value) // bus_bytes * bus_bytes, int(bus.arlen.value) + 1
                owed[int(bus.arid.value)] += [
                    (cycle + self._latency_cycles, start + bus_bytes * beat, beat == beats - 1)
                    for beat in range(beats)
                ]
            if offered is not None and bus.rready.value == 1:
                owed[offered].popleft()
                self.beats.append((cycle, offered))
                offered = None
            due = [identifier for identifier, queue in owed.items() if queue and queue[0][0] <= cycle]
            if offered is None and due and cycle % cycles_of < beats_of:
                offered = random.choice(due)
                _, address, last = owed[offered][0]
                data = await self._memory.read(address, bus_bytes)
                bus.rdata.value = int.from_bytes(data, "little")
                bus.rid.value, bus.rlast.value = offered, int(last)
            bus.rvalid.value = int(offered is not None)


class WatchedMemory(Memory):
    """A memory that refuses what no window of a job allows.

    Attributes:
        jobs: the last two, of which the first may have been dropped with reads under way.

    """

    def __init__(self, bus_bytes: int, content: bytes) -> None:
        super().__init__(bus_bytes, content, MEMORY_BASE)
        self.jobs: deque[Job] = deque(maxlen=2)

    async def read(self, address: int, nbytes: int) -> bytes:
        """One beat."""
        windows = [window for job in self.jobs for window in job.windows[0]]
        assert any(low <= address and address + nbytes <= end for low, end in windows), f"AR {address:#x}"
        return await super().read(address, nbytes)

    async def write(self, address: int, data: bytes) -> None:
        """A run of strobed bytes."""
        windows = [job.windows[1] for job in self.jobs]
        assert any(low <= address and address + len(data) <= end for low, end in windows), f"AW {address:#x}"
        await super().write(address, data)


class PlanesOfMaster:
    """The same memory behind a further key master's port, which may ask for planes of its banks alone."""

    def __init__(self, memory: WatchedMemory, design: DesignConfig, master: int) -> None:
        self._memory, self._design, self._master = memory, design, master
        self.bus_bytes = memory.bus_bytes

    async def read(self, address: int, nbytes: int) -> bytes:
        """One beat."""
        starts = [
            (start, self._design.layout(job.arguments[reg.HEAD_DIM]).block_bytes)
            for job in self._memory.jobs
            for start in job.descriptors["key_address"].tolist()
            if self._design.key_master(start) == self._master
        ]
        assert any(start <= address < start + block_bytes for start, block_bytes in starts), (
            f"AR {address:#x} of master {self._master}"
        )
        return await self._memory.read(address, nbytes)
