"""The kernel between a host and a memory, with the card model beside it."""

from __future__ import annotations

import logging
import random
from collections import defaultdict, deque
from itertools import count
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, First, RisingEdge, Timer
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiSlaveRead, AxiSlaveWrite

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.register_map import WORD_BYTES, Register
from nearkv_sim.benches.axi_harness import Memory, random_pauses
from nearkv_sim.benches.csr_harness import WORD_MASK
from nearkv_sim.benches.harness import CLOCK_NS, parameters
from nearkv_sim.benches.kernel_jobs import DESIGNS, MEMORY_BYTES, CardModel, Job
from nearkv_sim.card.card import MEMORY_BASE
from nearkv_sim.packaging.kernel import CLOCK, CONTROL, MEMORY, RESET

JOB_CYCLES = 60_000  # more than any job here takes
ERRORS = (reg.ERROR_CODE, reg.ERROR_ADDRESS, reg.ERROR_TOKEN, reg.ERROR_TOKENS)
STATE = (reg.STATUS, reg.CTRL, reg.ISR, reg.EVENTS, *ERRORS)
# The others depend on the memory.
COUNTED = tuple(r for r in reg.COUNTERS if r not in (reg.CYCLES, reg.INPUT_STALLS, reg.OUTPUT_STALLS))


class BusSignals:
    """Signals of a bus by the names that the AXI specification gives them."""

    def __init__(self, dut: Any, prefix: str) -> None:
        self._dut, self._prefix = dut, prefix

    def __getattr__(self, name: str) -> Any:
        """The signal `<prefix>_<name>`."""
        return getattr(self._dut, f"{self._prefix}_{name}")


class SlowReads:
    """A memory's read side: each burst `latency_cycles` after its address, then a beat in every cycle.

    Bursts of one identifier come in order; of several that are due, each beat is drawn at random.

    Attributes:
        beats: (cycle, identifier) of every beat taken.

    """

    def __init__(self, bus: Any, clk: Any, memory: Memory, latency_cycles: int) -> None:
        self._bus, self._clk, self._memory = bus, clk, memory
        self._latency_cycles = latency_cycles
        self.beats: list[tuple[int, int]] = []
        bus.arready.value, bus.rvalid.value, bus.rresp.value = 1, 0, 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        bus, bus_bytes = self._bus, self._memory.bus_bytes
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
            if offered is None and due:
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


class KernelBench:
    """A kernel, its host, its memory, every access of which must lie in a window of its job.

    Args:
        dut: the kernel.
        read_latency_cycles: of a memory that answers at full rate; None for cocotbext-axi's, which pauses.

    """

    def __init__(self, dut: Any, read_latency_cycles: int | None = None) -> None:
        self.dut = dut
        self.design_name: str = parameters()["design"]
        self.design = DESIGNS[self.design_name]
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.clk, self.rst = getattr(dut, CLOCK), getattr(dut, RESET)
        self.memory = WatchedMemory(self.design.bus_bytes, random.randbytes(MEMORY_BYTES))
        self.model = CardModel(self.design_name, bytes(self.memory.content))
        # Their reports of every burst take longer than the simulation.
        for name in (CONTROL, MEMORY):
            logging.getLogger(f"cocotb.{dut._name}.{name}").setLevel(logging.ERROR)
        bus = AxiBus.from_prefix(dut, MEMORY)
        write = AxiSlaveWrite(bus.write, self.clk, self.rst, self.memory, reset_active_level=False)
        self.memory.report(write.b_channel, "bresp")
        self.host = AxiLiteMaster(
            AxiLiteBus.from_prefix(dut, CONTROL), self.clk, self.rst, reset_active_level=False
        )
        host_read, host_write = self.host.read_if, self.host.write_if
        self.channels = [
            *(write.aw_channel, write.w_channel, write.b_channel),
            *(host_read.ar_channel, host_read.r_channel),
            *(host_write.aw_channel, host_write.w_channel, host_write.b_channel),
        ]
        self.slow_reads: SlowReads | None = None
        if read_latency_cycles is None:
            read = AxiSlaveRead(bus.read, self.clk, self.rst, self.memory, reset_active_level=False)
            self.memory.report(read.r_channel, "rresp")
            self.channels += [read.ar_channel, read.r_channel]
        else:
            signals = BusSignals(dut, MEMORY)
            self.slow_reads = SlowReads(signals, self.clk, self.memory, read_latency_cycles)

    async def start(self) -> None:
        """Clock, reset, interrupts allowed."""
        self.rst.value = 0
        Clock(self.clk, CLOCK_NS, unit="ns").start()
        await ClockCycles(self.clk, 3)
        self.rst.value = 1
        await RisingEdge(self.clk)
        await self.enable_interrupts()

    async def enable_interrupts(self) -> None:
        """As the driver does after a reset."""
        await self.write(reg.GIER, 1)
        await self.write(reg.IER, 1)

    def pause(self, share: float) -> None:
        """Let every channel of both buses pause at random."""
        for channel in self.channels:
            channel.set_pause_generator(random_pauses(share))

    async def write(self, register: Register, value: int) -> None:
        """To both."""
        for index in range(register.words):
            await self.host.write_dword(register.offset + WORD_BYTES * index, value >> 32 * index & WORD_MASK)
        self.model.write(register, value)

    async def read(self, register: Register) -> int:
        """From the RTL alone."""
        words = [
            await self.host.read_dword(register.offset + WORD_BYTES * index)
            for index in range(register.words)
        ]
        return sum(word << 32 * index for index, word in enumerate(words))

    async def begin(self, job: Job) -> None:
        """Lay a job out in both memories and start it on both."""
        self.memory.jobs.append(job)
        for address, part in job.parts:
            offset = address - MEMORY_BASE
            if 0 <= offset < MEMORY_BYTES:
                self.memory.content[offset : offset + len(part)] = part.tobytes()
        self.model.load(bytes(self.memory.content))
        for register, value in job.arguments.items():
            await self.write(register, value)
        await self.write(reg.CTRL, reg.CTRL.mask("ap_start"))

    async def wait(self) -> None:
        """Until the interrupt, which must come."""
        if not int(self.dut.interrupt.value):
            late = Timer(JOB_CYCLES * CLOCK_NS, unit="ns")
            assert await First(RisingEdge(self.dut.interrupt), late) is not late, "no interrupt"

    async def compare(self, *registers: Register) -> None:
        """These registers read the same on both."""
        for register in registers:
            found, expected = await self.read(register), self.model.read(register)
            assert found == expected, f"{register.name} is {found:#x}, the card model has {expected:#x}"

    async def run(self, job: Job, *registers: Register) -> None:
        """A whole job; registers and the whole memory are as the card model's, then it is acknowledged."""
        await self.begin(job)
        await self.wait()
        await self.compare(*(registers or (*STATE, *COUNTED)))
        assert self.memory.content == self.model.content
        await self.acknowledge()

    async def acknowledge(self) -> None:
        """As the driver does after a job."""
        await self.write(reg.ISR, reg.ISR.mask("done"))
        await self.write(reg.CTRL, reg.CTRL.mask("ap_continue"))

    async def recover(self) -> None:
        """RESET, and the model's memory as ours."""
        await self.write(reg.RESET, reg.RESET.mask("reset"))
        await self.enable_interrupts()
        self.model.load(bytes(self.memory.content))

    @staticmethod
    def outside_results(job: Job, content: bytes | bytearray) -> bytes:
        """Memory without the job's result window."""
        start = job.arguments[reg.RESULT_ADDRESS] - MEMORY_BASE
        return bytes(content[:start]) + content[start + job.arguments[reg.RESULT_BYTES] :]
