"""The host: root complex with memory, processors' loads and stores, and its interrupt."""

from __future__ import annotations

from collections import deque

import cocotb
from cocotb.queue import Queue
from cocotb.triggers import Event
from cocotbext.axi.sparse_memory import SparseMemory
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.msi import MsiRegion
from cocotbext.pcie.core.tlp import Tlp
from cocotbext.pcie.core.utils import PcieId

from nearkv_sim.hardware.pcie_tlp import MSI_ADDRESS
from nearkv_sim.pcie.frames import now_ps
from nearkv_sim.pcie.requester import Completer, Parties, Requester, request, write_span


class _InterruptWindow(MsiRegion):  # type: ignore[misc]  # of an untyped package
    """Where interrupts are written to, at the address of the x86 window."""

    def get_absolute_address(self, addr: int) -> int:
        return MSI_ADDRESS + addr


class Host(RootComplex):  # type: ignore[misc]  # of an untyped package
    """A root complex whose memory answers reads after a latency, as many at a time as come.

    Formula: reads are answered in order, `root_complex_read_latency_ps` after they came; poisoned writes are
    not performed. Loads and stores leave in program order; stores are posted.

    Args:
        parties: shared state.
        memory_base: where BARs are laid out from.

    Attributes:
        memory: bytes written by devices or `memory.write`.
        interrupts_ps: when handlers of interrupts start that nobody has waited for yet.
        changed: set when a write or an interrupt has come.

    """

    def __init__(self, parties: Parties, memory_base: int) -> None:
        super().__init__()
        self.mem_base = self.mem_limit = memory_base
        self.upstream_bridge.mem_base = self.upstream_bridge.mem_limit = memory_base
        self.msi_region = _InterruptWindow(self)
        self.memory = SparseMemory(1 << 64)
        self.interrupts_ps: deque[int] = deque()
        self.changed = Event()
        self._parties = parties
        self._processor = Requester(self, parties)
        self._completer = Completer(
            self.send, lambda: PcieId(0, 0, 0), parties, parties.config.root_complex_read_latency_ps
        )
        self._stores: Queue[tuple[int, bytes]] = Queue()
        self._storing, self._drained = False, Event()
        cocotb.start_soon(self._drain_stores())

    def restart(self) -> None:
        """Forget memory and interrupts."""
        self.memory.clear()
        self.interrupts_ps.clear()

    def store(self, address: int, data: bytes) -> None:
        """Post a write of at most a line; takes no time."""
        self._stores.put_nowait((address, data))

    async def load(self, address: int, nbytes: int) -> bytes:
        """Read, behind all stores; ReadFailed if there is no answer."""
        while not self._stores.empty() or self._storing:
            self._drained.clear()
            await self._drained.wait()
        return await self._processor.read(address, nbytes)

    def counts(self) -> dict[str, int]:
        """Tags in use, and reads not answered yet."""
        return {
            "tags": self._processor.in_flight(),
            "unanswered": self._completer.waiting(),
            "stores": self._stores.qsize() + self._storing,
        }

    async def _drain_stores(self) -> None:
        while True:
            address, data = await self._stores.get()
            self._storing = True
            await self.send(request(False, address, len(data), PcieId(0, 0, 0), data))
            self._storing = False
            self._drained.set()

    async def handle_tlp(self, tlp: Tlp) -> None:
        """Take a TLP that has reached the root complex."""
        if not (tlp.is_completion() and self._processor.refused(tlp)):
            await super().handle_tlp(tlp)

    async def handle_mem_read_tlp(self, tlp: Tlp) -> None:
        """A device reads host memory."""
        start = tlp.address + tlp.get_first_be_offset()
        self._completer.answer(tlp, bytes(self.memory.read(start, tlp.get_be_byte_count())))

    async def handle_mem_write_tlp(self, tlp: Tlp) -> None:
        """A device writes host memory, or raises an interrupt."""
        address, data = write_span(tlp)
        if tlp.ep:
            self._parties.events["poisoned write at host"] += 1
        elif address == MSI_ADDRESS:
            self.interrupts_ps.append(now_ps() + self._parties.config.interrupt_latency_ps)
        else:
            self.memory.write(address, data)
        self.changed.set()
