"""The card: what XRT's shell does around the kernel."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiLiteMaster, AxiResp
from cocotbext.pcie.core.caps import MsiCapability
from cocotbext.pcie.core.tlp import Tlp

from nearkv_hdl.spec.register_map import WINDOW_BYTES
from nearkv_sim.card.card import DMA_LIST_ENTRY_BYTES, HOST_COMPLETION
from nearkv_sim.card.kernel_cycles import READ_LATENCY_PS
from nearkv_sim.card.memory import DeviceMemory, UnwrittenMemory
from nearkv_sim.pcie.device import BusDevice
from nearkv_sim.pcie.doorbells import DOORBELL_OFFSET, MEMORY_BAR_BYTES, Doorbell, Operation
from nearkv_sim.pcie.memory_port import MemoryPort
from nearkv_sim.pcie.requester import Completer, Parties

CONTROL_BAR_BYTES = 1 << 17
CONTROL, MEMORY = 0, 2  # BARs of the card
# Control word of ap_ctrl_chain (AMD UG1393, "Control Requirements for XRT-Managed Kernels").
AP_CONTROL, AP_START, AP_CONTINUE = 0, 1 << 0, 1 << 4


class Card(BusDevice):
    """The FPGA: a model of what XRT's shell does around the kernel.

    Formula: BAR 0 leads to `s_axi_control`, and to the DMA engine's doorbell at DOORBELL_OFFSET; BAR 2 to the
    memory behind `m_axi_gmem`. A rising interrupt line sends an MSI.
    Timing: a load is answered `mmio_turnaround_latency_ps` after it came, or when AXI4-Lite has answered if
    later; memory behind BAR 2 after READ_LATENCY_PS. The DMA engine and its memory take no time of their own.

    Args:
        parties: shared state.
        control: masters `s_axi_control`.
        port: the kernel's memory.
        interrupt: the line.

    Attributes:
        memory: behind `port`.
        jobs: finished jobs, failed ones included.
        device_cycles: clock cycles from start to interrupt, of all of them.

    """

    def __init__(self, parties: Parties, control: AxiLiteMaster, port: MemoryPort, interrupt: Any) -> None:
        super().__init__(parties, HOST_COMPLETION)
        self.configure_bar(CONTROL, CONTROL_BAR_BYTES)
        self.configure_bar(MEMORY, MEMORY_BAR_BYTES, ext=True, prefetch=True)
        self.msi_cap = MsiCapability()
        self.msi_cap.msi_64bit_address_capable = 1
        self.register_capability(self.msi_cap)
        self._control, self._port = control, port
        self._loads = Completer(
            self.send, lambda: self.pcie_id, parties, parties.config.mmio_turnaround_latency_ps
        )
        self._peers = Completer(self.send, lambda: self.pcie_id, parties, READ_LATENCY_PS)
        self._started: int | None = None  # cycle of a job's start
        self.jobs = self.device_cycles = 0
        cocotb.start_soon(self._watch(interrupt))

    @property
    def memory(self) -> DeviceMemory:
        """Memory of kernel, DMA engine and peers."""
        return self._port.memory

    def match_bar(self, addr: int, io: bool = False) -> tuple[int, int] | None:
        """BAR and offset of an address; cocotbext-pcie takes one above 2 GiB for unimplemented."""
        base = self.bar_address(MEMORY)
        if base and not io and base <= addr < base + MEMORY_BAR_BYTES:
            return MEMORY, addr - base
        found: tuple[int, int] | None = super().match_bar(addr, io)
        return found

    @property
    def running(self) -> bool:
        """Whether a job has been started and not ended, as far as the shell can see."""
        return self._started is not None

    def restart(self, memory: DeviceMemory) -> None:
        """Take other memory, and count jobs afresh."""
        self._port.memory = memory
        self._started = None
        self.jobs = self.device_cycles = 0

    def counts(self) -> dict[str, int]:
        """Tags in use, commands and loads not finished."""
        return {**super().counts(), "unanswered": self._loads.waiting() + self._peers.waiting()}

    def _written(self, bar: int, offset: int, data: bytes) -> None:
        if bar == MEMORY:
            self.memory.write(self.memory.base + offset, np.frombuffer(data, np.uint8))
        elif offset == DOORBELL_OFFSET:
            self._commands.put_nowait(Doorbell.unpack(data))
        elif offset < WINDOW_BYTES:
            self._port.active_cycle = self._port.cycles
            self._control.init_write(offset, data)
            self._follow_job(offset, int.from_bytes(data, "little"))

    def _read(self, bar: int, offset: int, tlp: Tlp) -> None:
        nbytes = tlp.get_be_byte_count()
        if bar == MEMORY:
            try:
                data = self.memory.read(self.memory.base + offset, nbytes).tobytes()
            except (UnwrittenMemory, ValueError):
                data = None
            self._peers.answer(tlp, data)
        else:
            self._loads.answer(tlp, cocotb.start_soon(self._load(offset, nbytes)))

    async def _load(self, offset: int, nbytes: int) -> bytes | None:
        await self._control.write_if.wait()
        answer = await self._control.read(offset, nbytes)
        return bytes(answer.data) if answer.resp == AxiResp.OKAY else None

    async def _execute(self, command: Doorbell) -> None:
        match command.operation:
            case Operation.LOAD:
                data = await self._requester.read(command.bus_address, command.nbytes)
                self.memory.write(command.device_address, np.frombuffer(data, np.uint8))
            case Operation.STORE:
                data = self.memory.read(command.device_address, command.nbytes).tobytes()
                await self._requester.write(command.bus_address, data)
            case Operation.GATHER:
                listed = await self._requester.read(
                    command.device_address, DMA_LIST_ENTRY_BYTES * command.rows
                )
                rows = self.memory.gather(np.frombuffer(listed, "<i8"), command.nbytes)
                await self._requester.write(command.bus_address, rows.tobytes())

    def _follow_job(self, offset: int, value: int) -> None:
        if offset != AP_CONTROL:
            return
        if value & AP_START and self._started is None:
            self._started = self._port.cycles
        elif value & AP_CONTINUE:
            self._finish_job()

    def _finish_job(self) -> None:
        if self._started is not None:
            self.jobs += 1
            self.device_cycles += self._port.cycles - self._started
            self._started = None

    async def _watch(self, interrupt: Any) -> None:
        while True:
            await RisingEdge(interrupt)
            self._finish_job()
            await self.msi_cap.issue_msi_interrupt()
