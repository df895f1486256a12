"""`SimulatedCard`: a transport over an event model of the link, with any engine behind it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.transport import Bytes, Int64, Transport, TransportCounters
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.register_map import WORD_BYTES
from nearkv_sim.card.kernel import Kernel
from nearkv_sim.card.kernel_cycles import READ_LATENCY_PS
from nearkv_sim.card.memory import DeviceMemory
from nearkv_sim.card.register_file import RegisterFile
from nearkv_sim.engines import Engine
from nearkv_sim.hardware.pcie import PcieLink

MEMORY_BASE = 1 << 32  # not 0, so that an offset taken for an address is found out
CONTROL_BAR = 0xA000_0000  # a 32-bit BAR, as XRT's control window usually is
DMA_DOORBELL = CONTROL_BAR + 0x1_0000
DMA_DOORBELL_BYTES = 32  # device address, host address, length, flags, in one write-combined store
DMA_LIST_ENTRY_BYTES = 8  # a row's device address; the length stands once, in the doorbell
DMA_COMPLETION_BYTES = 4  # written to host memory, where the driver polls
HOST_BUFFER = 1 << 36  # page-aligned host memory above 4 GiB
HOST_LIST = HOST_BUFFER - (1 << 32)
HOST_COMPLETION = HOST_LIST - 4096


class SimulatedCard(Transport):
    """One card on one link, in integer picoseconds of simulated time.

    Registers are reached by CPU loads and stores. Memory is reached by the card's DMA engine: a doorbell
    store, the data (and before a gather its address list) as device reads or writes of host memory, then a
    completion word that the host polls. A job takes `cycles / clock_hz` from the arrival of ap_start; its
    result appears, and its interrupt is raised, at the end. A simplification: jobs and the DMA engine do not
    slow each other down in the card's memory.

    Args:
        name: transport name.
        design: what the identity registers describe.
        link: the link, for this card alone.
        engine: scores the jobs.
        memory_bytes: size of the card's memory.
        on_close: called once, when the card is closed: whoever observes the link is done then.

    """

    def __init__(
        self,
        name: str,
        design: DesignConfig,
        link: PcieLink,
        engine: Engine,
        memory_bytes: int,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._name = name
        self._design = design
        self._link = link
        self._memory = DeviceMemory(MEMORY_BASE, memory_bytes)
        self._kernel = Kernel(design, self._memory, engine, self._send_interrupt, READ_LATENCY_PS)
        self._interrupts_ps: deque[int] = deque()  # times at which handlers start
        self._now_ps = 0
        self._on_close = on_close
        self._closed = False

    @property
    def name(self) -> str:
        """Transport name."""
        return self._name

    @property
    def design(self) -> DesignConfig:
        """Build of the card."""
        return self._design

    @property
    def memory_base(self) -> int:
        """First address."""
        return self._memory.base

    @property
    def memory_bytes(self) -> int:
        """Size of the memory."""
        return self._memory.end - self._memory.base

    @property
    def now_ps(self) -> int:
        """Simulated time at the host."""
        return self._now_ps

    @property
    def counters(self) -> TransportCounters:
        """Totals of the link and of finished jobs."""
        down, up = self._link.downstream, self._link.upstream
        return TransportCounters(
            payload_bytes_to_device=down.payload_bytes,
            payload_bytes_from_device=up.payload_bytes,
            wire_bytes_to_device=down.wire_bytes,
            wire_bytes_from_device=up.wire_bytes,
            tlps_to_device=down.tlps,
            tlps_from_device=up.tlps,
            device_cycles=self._kernel.device_cycles,
            jobs=self._kernel.jobs,
        )

    def read_register(self, offset: int) -> int:
        """Load a word; its value is the one at the time of the request."""
        self._check_open()
        value = self._kernel.read_word(offset, self._now_ps)
        self._now_ps = self._link.mmio_read(self._now_ps, CONTROL_BAR + offset, WORD_BYTES)
        return value

    def write_register(self, offset: int, value: int) -> None:
        """Store a word; posted, so that the host's time does not move."""
        self._check_open()
        RegisterFile.check_word(offset, value)
        at_ps = self._link.mmio_write(self._now_ps, CONTROL_BAR + offset, WORD_BYTES)
        self._kernel.write_word(offset, value, at_ps)

    def write_memory(self, address: int, data: Bytes) -> None:
        """Let the card read host memory."""
        self._memory.check_range(address, len(data))
        at_ps = self._link.device_read(self._doorbell(), HOST_BUFFER, len(data))
        self._kernel.finish_until(at_ps)
        self._memory.write(address, data)
        self._complete(at_ps)

    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Let the card write host memory."""
        self._memory.check_range(address, nbytes)
        at_ps = self._doorbell()
        data = self._memory.read(address, nbytes).copy()
        self._link.device_write(at_ps, HOST_BUFFER, nbytes)
        self._complete(at_ps)
        return data

    def read_gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Let the card read an address list, then write the rows one behind the other."""
        self._memory.check_rows(addresses, row_bytes)
        list_bytes = DMA_LIST_ENTRY_BYTES * len(addresses)
        at_ps = self._link.device_read(self._doorbell(), HOST_LIST, list_bytes)
        self._kernel.finish_until(at_ps)
        rows = self._memory.gather(addresses, row_bytes)
        self._link.device_write(at_ps, HOST_BUFFER, rows.nbytes)
        self._complete(at_ps)
        return rows

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Let simulated time pass until the next interrupt or the deadline."""
        self._check_open()
        if timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        deadline_ps = self._now_ps + timeout_ps
        if not self._interrupts_ps:
            self._kernel.finish_until(deadline_ps)
        if self._interrupts_ps and self._interrupts_ps[0] <= deadline_ps:
            self._now_ps = max(self._now_ps, self._interrupts_ps.popleft())
            return
        self._now_ps = deadline_ps
        raise DeviceTimeout(f"transport {self._name}: no interrupt within {timeout_ps} ps")

    def close(self) -> None:
        """Refuse all further use."""
        if self._on_close and not self._closed:
            self._on_close()
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"transport {self._name} is closed")

    def _doorbell(self) -> int:
        """Start the DMA engine; returns when it does."""
        self._check_open()
        at_ps = self._link.mmio_write(self._now_ps, DMA_DOORBELL, DMA_DOORBELL_BYTES)
        self._kernel.finish_until(at_ps)
        return at_ps

    def _complete(self, at_ps: int) -> None:
        """Write the completion word, behind what the card has posted: writes keep their order."""
        self._now_ps = self._link.device_write(at_ps, HOST_COMPLETION, DMA_COMPLETION_BYTES)

    def _send_interrupt(self, at_ps: int) -> None:
        self._interrupts_ps.append(self._link.interrupt(at_ps))
