"""The kernel between a host and a memory, with the card model beside it."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, First, RisingEdge, Timer
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiReadBus,
    AxiSlaveRead,
    AxiSlaveWrite,
    AxiWriteBus,
)

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.register_map import WORD_BYTES, Register
from nearkv_sim.benches.axi_harness import random_pauses
from nearkv_sim.benches.csr_harness import WORD_MASK
from nearkv_sim.benches.harness import CLOCK_NS, parameters
from nearkv_sim.benches.kernel_designs import DESIGNS
from nearkv_sim.benches.kernel_jobs import MEMORY_BYTES, CardModel, Job
from nearkv_sim.benches.kernel_memories import PlanesOfMaster, SlowReads, WatchedMemory
from nearkv_sim.card.card import MEMORY_BASE
from nearkv_sim.packaging.kernel import CLOCK, CONTROL, MEMORY, RESET, memory_ports

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


class KernelBench:
    """A kernel, its host, its memory, every access of which must lie in a window of its job.

    Args:
        dut: the kernel.
        read_latency_cycles: of a memory that answers at full rate; None for cocotbext-axi's, which pauses.
        read_rate: beats of so many cycles that such a memory gives on each port.

    Attributes:
        slow_reads: such memories, by port.

    """

    def __init__(
        self, dut: Any, read_latency_cycles: int | None = None, read_rate: tuple[int, int] = (1, 1)
    ) -> None:
        self.dut = dut
        self.design_name: str = parameters()["design"]
        self.design = DESIGNS[self.design_name]
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.clk, self.rst = getattr(dut, CLOCK), getattr(dut, RESET)
        self.memory = WatchedMemory(self.design.bus_bytes, random.randbytes(MEMORY_BYTES))
        self.model = CardModel(self.design_name, bytes(self.memory.content))
        # Their reports of every burst take longer than the simulation.
        ports = memory_ports(self.design.key_masters)
        for name in (CONTROL, *ports):
            logging.getLogger(f"cocotb.{dut._name}.{name}").setLevel(logging.ERROR)
        write_bus = AxiWriteBus.from_prefix(dut, MEMORY)
        write = AxiSlaveWrite(write_bus, self.clk, self.rst, self.memory, reset_active_level=False)
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
        self.slow_reads: list[SlowReads] = []
        for master, port in enumerate(ports):
            memory = PlanesOfMaster(self.memory, self.design, master) if master else self.memory
            if read_latency_cycles is None:
                read_bus = AxiReadBus.from_prefix(dut, port)
                read = AxiSlaveRead(read_bus, self.clk, self.rst, memory, reset_active_level=False)
                self.memory.report(read.r_channel, "rresp")
                self.channels += [read.ar_channel, read.r_channel]
            else:
                signals = BusSignals(dut, port)
                self.slow_reads.append(SlowReads(signals, self.clk, memory, read_latency_cycles, read_rate))

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
