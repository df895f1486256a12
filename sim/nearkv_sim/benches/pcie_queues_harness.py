"""QueueUnit between a host with a root complex, a memory, and a kernel whose outcomes the bench decides."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import cocotb
import numpy as np
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, Event, First, Timer
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteSlave, AxiSlave
from numpy.typing import NDArray

from nearkv.device.errors import DeviceTimeout
from nearkv.device.queue_driver import QueueDriver
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.queue_entries import LINE_BYTES
from nearkv_hdl.spec.register_map import WORD_BYTES, Register
from nearkv_sim.benches.axi_harness import Memory, random_pauses
from nearkv_sim.benches.pcie_native_host import PcieHost
from nearkv_sim.benches.pcie_queues_model import Fault
from nearkv_sim.card.register_file import RegisterFile

MESSAGE_ADDRESS = 0x8000_0000  # where the root complex takes messages
MEMORY_BYTES = 1 << 16
SQ, CQ = 0x1000, 0x2000


class HostAccess:
    """`QueueAccess` of a blocking driver inside the simulation.

    Args:
        host: after its `start`.
        read, write: host memory, by address.

    """

    def __init__(
        self, host: PcieHost, read: Callable[[int, int], bytes], write: Callable[[int, bytes], None]
    ) -> None:
        self._host, self._read, self._write = host, read, write
        self._taken = 0
        self._event = Event()
        self.messages = 0

    async def on_message(self) -> None:
        """A message has arrived."""
        self.messages += 1
        self._event.set()

    @property
    def now_ps(self) -> int:
        """Simulated time."""
        return int(get_sim_time("ps"))

    def read_register(self, offset: int) -> int:
        """One word of BAR0."""
        word: int = resume(self._host.bar.read_dword)(offset)
        return word

    def write_register(self, offset: int, value: int) -> None:
        """One word of BAR0."""
        resume(self._host.bar.write_dword)(offset, value)

    def read_memory(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Host memory."""
        return np.frombuffer(self._read(address, nbytes), np.uint8)

    def write_memory(self, address: int, data: NDArray[np.uint8]) -> None:
        """Host memory."""
        self._write(address, data.tobytes())

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Take one."""
        resume(self._wait)(timeout_ps)

    async def _wait(self, timeout_ps: int) -> None:
        if self._taken == self.messages:
            self._event.clear()
            late = Timer(timeout_ps, unit="ps")
            if await First(self._event.wait(), late) is late:
                raise DeviceTimeout(f"no interrupt within {timeout_ps} ps")
        self._taken += 1


class LoggedMemory(Memory):
    """Host memory from address 0, and messages, in the order in which they were written.

    Attributes:
        writes: address and bytes.

    """

    def __init__(self) -> None:
        super().__init__(LINE_BYTES, random.randbytes(MEMORY_BYTES), base=0)
        self.writes: list[tuple[int, bytes]] = []
        self.access: HostAccess | None = None

    async def write(self, address: int, data: bytes) -> None:
        """A run of strobed bytes."""
        self.writes.append((address, bytes(data)))
        if address == MESSAGE_ADDRESS:
            assert self.access is not None
            await self.access.on_message()
        else:
            await super().write(address, data)


class FakeKernel:
    """Registers of the kernel; its jobs end as `outcomes` say.

    Attributes:
        outcomes: cycles and fault of the next jobs; without one a job never ends.
        jobs: arguments of every job that was started.
        resets: times that RESET was written.
        drain_cycles: for which `kernel_busy` stays after RESET.

    """

    def __init__(self, dut: Any) -> None:
        self._dut = dut
        self._registers = RegisterFile(get_design("tiny"))
        self._job: Any = None
        self.outcomes: deque[tuple[int, Fault]] = deque()
        self.jobs: list[dict[Register, int]] = []
        self.resets = 0
        self.drain_cycles = 0
        dut.interrupt.value = 0
        dut.kernel_busy.value = 0

    async def read(self, address: int, nbytes: int) -> bytes:
        """One word."""
        return self._registers.read_word(address).to_bytes(nbytes, "little")

    async def write(self, address: int, data: bytes) -> None:
        """One word, and what follows from it."""
        value = int.from_bytes(data, "little")
        registers = self._registers
        if address == reg.CTRL.offset:
            command = reg.CTRL.unpack(value)
            if command["ap_continue"]:
                registers[reg.CTRL] = reg.CTRL.mask("ap_idle")
            if command["ap_start"]:
                assert registers[reg.ERROR_CODE] == 0, "a job on a recorded error"
                assert registers[reg.CTRL] & reg.CTRL.mask("ap_idle"), "a job before ap_continue"
                self.jobs.append({argument: registers[argument] for argument in reg.ARGUMENTS})
                registers[reg.CTRL] = reg.CTRL.mask("ap_start")
                self._job = cocotb.start_soon(self._run())
        else:
            registers.write_word(address, value)
        if address == reg.RESET.offset and value & 1:
            self.resets += 1
            registers.reset()
            if self._job is not None and not self._job.done():
                self._job.cancel()
                cocotb.start_soon(self._drain())
        self._drive()

    async def _run(self) -> None:
        self._dut.kernel_busy.value = 1
        if not self.outcomes:
            await Event().wait()
        cycles, (code, address, token) = self.outcomes.popleft()
        await ClockCycles(self._dut.clk, cycles)
        registers = self._registers
        registers[reg.ERROR_CODE], registers[reg.ERROR_ADDRESS] = code, address
        registers[reg.ERROR_TOKEN] = token
        registers[reg.STATUS] = reg.JobState.FAILED if code else reg.JobState.DONE
        registers[reg.CTRL] = reg.CTRL.mask("ap_done") | reg.CTRL.mask("ap_idle")
        registers[reg.ISR] |= registers[reg.IER]
        self._dut.kernel_busy.value = 0
        self._drive()

    async def _drain(self) -> None:
        await ClockCycles(self._dut.clk, self.drain_cycles)
        self._dut.kernel_busy.value = 0

    def _drive(self) -> None:
        self._dut.interrupt.value = int(bool(self._registers[reg.GIER] and self._registers[reg.ISR]))


class QueuesBench:
    """All of it.

    Attributes:
        driver: of queues with `entries` entries, not yet enabled.

    """

    def __init__(self, dut: Any, entries: int = 4) -> None:
        self.dut = dut
        dut.msix_enable.value = 0
        dut.msix_function_mask.value = 0
        self.host = PcieHost(dut, dut.clk, dut.rst, requests=False)
        self.memory = LoggedMemory()
        self.kernel = FakeKernel(dut)
        self._slave = AxiSlave(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, self.memory)
        self.memory.report(self._slave.read_if.r_channel, "rresp")
        self.memory.report(self._slave.write_if.b_channel, "bresp")
        bus = AxiLiteBus.from_prefix(dut, "m_axil_kernel")
        self._control = AxiLiteSlave(bus, dut.clk, dut.rst, self.kernel)
        content = self.memory.content
        self.access = HostAccess(
            self.host,
            lambda address, nbytes: bytes(content[address : address + nbytes]),
            lambda address, data: content.__setitem__(slice(address, address + len(data)), data),
        )
        self.memory.access = self.access
        self.driver = QueueDriver(self.access, SQ, CQ, entries)

    async def start(self) -> None:
        """Enumerate, and let the host program the MSI-X table as operating systems do."""
        await self.host.start()
        await self.host.function.alloc_irq_vectors(1, 1)
        self.dut.msix_enable.value = 1

    def pause(self, share: float) -> None:
        """Let every interface pause at random."""
        self.host.pause(share)
        for slave in (self._slave, self._control):
            read, write = slave.read_if, slave.write_if
            channels = (read.ar_channel, read.r_channel, write.aw_channel, write.w_channel, write.b_channel)
            for channel in channels:
                channel.set_pause_generator(random_pauses(share))

    async def read(self, register: Register) -> int:
        """A register of BAR0."""
        offset = qr.bar_offset(register)
        words = [
            await self.host.bar.read_dword(offset + WORD_BYTES * index) for index in range(register.words)
        ]
        return sum(word << 32 * index for index, word in enumerate(words))

    async def write(self, register: Register, value: int) -> None:
        """A register of BAR0."""
        for index in range(register.words):
            offset = qr.bar_offset(register) + WORD_BYTES * index
            await self.host.bar.write_dword(offset, value >> 32 * index & 0xFFFF_FFFF)

    async def call(self, blocking: Callable[..., Any], *args: Any) -> Any:
        """Run a method of the driver."""
        return await bridge(blocking)(*args)
