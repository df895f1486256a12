"""NativePcie between a host and its memory, with the card model beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from cocotb.task import bridge
from cocotb.triggers import ClockCycles
from cocotbext.axi.address_space import MemoryRegion
from cocotbext.pcie.core.tlp import Tlp, TlpType
from cocotbext.pcie.core.utils import PcieId

from nearkv.device.queue_driver import QueueDriver
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.queue_entries import LINE_BYTES, GenericStatus, StatusType
from nearkv_hdl.spec.register_map import WINDOW_BYTES, WORD_BYTES, Register
from nearkv_sim.benches.axi_harness import random_pauses
from nearkv_sim.benches.harness import parameters
from nearkv_sim.benches.kernel_designs import DESIGNS
from nearkv_sim.benches.kernel_jobs import MEMORY_BYTES, CardModel, Job, random_job
from nearkv_sim.benches.pcie_native_host import PcieHost
from nearkv_sim.benches.pcie_queues_harness import MESSAGE_ADDRESS, HostAccess
from nearkv_sim.card.card import MEMORY_BASE

QUEUES = 2 << 32  # where the queues lie; nothing else there
ENTRIES = 4
_QUEUE_BYTES = 2 * qr.QUEUE_ALIGN_BYTES


class NativeBench:
    """A card in a host.

    Attributes:
        data: host memory of the jobs, from MEMORY_BASE.
        refused, lost: addresses whose reads the host answers with Unsupported Request, or never.
        writes: addresses of the device's writes, messages included, in the order of their arrival.
        model: the card model with the same memory.
        driver: of the queues.

    """

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        dut.extended_tags.value = 0
        self.design_name: str = parameters()["design"]
        self.design = DESIGNS[self.design_name]
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.host = PcieHost(dut, dut.user_clk, dut.user_reset, requests=True)
        self.data = MemoryRegion(MEMORY_BYTES, bytearray(random.randbytes(MEMORY_BYTES)))
        queues = MemoryRegion(_QUEUE_BYTES, bytearray(_QUEUE_BYTES))
        root = self.host.root
        root.mem_address_space.register_region(self.data, MEMORY_BASE)
        root.mem_address_space.register_region(queues, QUEUES)
        self.refused: set[int] = set()
        self.lost: set[int] = set()
        self.writes: list[int] = []
        for kind in (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64):
            root.register_rx_tlp_handler(kind, self._write)
        for kind in (TlpType.MEM_READ, TlpType.MEM_READ_64):
            root.register_rx_tlp_handler(kind, self._read)
        self.model = CardModel(self.design_name, bytes(self.data.mem))
        self.access = HostAccess(
            self.host,
            lambda address, nbytes: bytes(queues.mem[address - QUEUES : address - QUEUES + nbytes]),
            lambda address, data: queues.mem.__setitem__(
                slice(address - QUEUES, address - QUEUES + len(data)), data
            ),
        )
        self.driver = QueueDriver(self.access, QUEUES, QUEUES + qr.QUEUE_ALIGN_BYTES, ENTRIES)

    async def _read(self, tlp: Any) -> None:
        root, addresses = self.host.root, range(tlp.address, tlp.address + 4 * tlp.length)
        if any(address in addresses for address in self.refused):
            await root.send(Tlp.create_ur_completion_for_tlp(tlp, PcieId(0, 0, 0)))
        elif not any(address in addresses for address in self.lost):
            await root.handle_mem_read_tlp(tlp)

    async def _write(self, tlp: Any) -> None:
        self.writes.append(tlp.address)
        await self.host.root.handle_mem_write_tlp(tlp)

    async def start(self) -> None:
        """Enumerate, allocate an interrupt, enable the queues."""
        await self.host.start()
        await self.host.function.alloc_irq_vectors(1, 1)
        self.host.function.request_irq(0, self.access.on_message)
        await self.call(self.driver.enable)

    def pause(self, share: float) -> None:
        """Let every interface of the block pause at random."""
        self.host.pause(share)
        for interface in (self.host.block.rq_sink, self.host.block.rc_source):
            interface.set_pause_generator(random_pauses(share))

    async def call(self, blocking: Callable[..., Any], *args: Any) -> Any:
        """Run a method of the driver."""
        return await bridge(blocking)(*args)

    def job(self, blocks: int, heads: int, head_dim: int = 64, **formats: Any) -> Job:
        """A random job that an entry can carry, laid out in host memory."""
        job = random_job(self.design_name, self.rng, blocks, heads, head_dim, **formats)
        self.lay_out(job)
        return job

    def lay_out(self, job: Job) -> None:
        """Copy descriptors, codes and blocks, as bent, to host memory."""
        parts = [(job.arguments[reg.DESCRIPTOR_ADDRESS], job.image)]
        parts += zip(job.key_addresses, job.keys, strict=True)
        for address, part in parts:
            offset = address - MEMORY_BASE
            if 0 <= offset < MEMORY_BYTES:
                self.data.mem[offset : offset + len(part)] = part.tobytes()

    def expect(self, job: Job) -> tuple[int, int, int, int]:
        """Run it on the model; status type and code, address line and token that its completion must have."""
        model = self.model
        model.load(bytes(self.data.mem))
        for register in reg.ARGUMENTS:
            model.write(register, job.arguments.get(register, 0))
        model.write(reg.CTRL, reg.CTRL.mask("ap_start"))
        code, address = model.read(reg.ERROR_CODE), model.read(reg.ERROR_ADDRESS)
        if code:
            return StatusType.KERNEL, code, address // LINE_BYTES % (1 << 48), model.read(reg.ERROR_TOKEN)
        return StatusType.GENERIC, GenericStatus.SUCCESS, 0, 0

    def renew_model(self) -> None:
        """The model as after a RESET."""
        self.model.write(reg.RESET, reg.RESET.mask("reset"))

    async def counter(self, register: Register) -> int:
        """A register of the kernel, through its page of BAR0."""
        offset = qr.KERNEL_PAGE * WINDOW_BYTES + register.offset
        words = [
            await self.host.bar.read_dword(offset + WORD_BYTES * index) for index in range(register.words)
        ]
        return sum(word << 32 * index for index, word in enumerate(words))

    async def settle(self) -> None:
        """Let everything under way arrive."""
        await ClockCycles(self.dut.user_clk, 500)

    def check_order(self) -> None:
        """Since `writes` was cleared: results, then completion, then message."""
        completions = range(QUEUES + qr.QUEUE_ALIGN_BYTES, QUEUES + _QUEUE_BYTES)
        kinds = ["c" if at in completions else "m" if at == MESSAGE_ADDRESS else "r" for at in self.writes]
        assert "".join(kinds).lstrip("r") == "cm", kinds
