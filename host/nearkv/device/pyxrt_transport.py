"""Transport `pyxrt`: a card under XRT, through XRT's own Python module. Never run on a card yet.

Registers need `kernel.read_register` and `write_register`, which pyxrt has up to XRT 2.14 (release 2022.2)
and not since (XRT issue 7863). The compute unit is opened exclusively, since XRT refuses register access to a
shared one, and jobs are started by register: XRT's scheduler, and with it `pyxrt.run`, has no part in them.
pyxrt hands out no interrupts of such a kernel, so waiting polls EVENTS, which is there for that purpose.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from nearkv.device.access import RetryingAccess
from nearkv.device.errors import DeviceError, DeviceTimeout, TransferError
from nearkv.device.pyxrt_memory import PyxrtMemory, check_memory_bytes
from nearkv.device.transport import Bytes, Int64, Transport, TransportCounters
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.register_map import WINDOW_BYTES, WORD_BYTES

KERNEL_NAME = "nearkv_kernel"
MEMORY_ARGUMENT = reg.ARGUMENTS.index(reg.DESCRIPTOR_ADDRESS)  # one port, so one group for all addresses
DEFAULT_MEMORY_BYTES = 1 << 30
PS_PER_NS = 1000
_WORD_MAX = 0xFFFF_FFFF
# What pybind11 makes of std::exception, std::out_of_range and std::bad_alloc ("Built-in C++ to Python
# exception translation"); std::invalid_argument becomes ValueError.
_XRT_ERRORS = (RuntimeError, IndexError, MemoryError)


class PyxrtTransport(Transport):
    """One compute unit of one card.

    Counters: payload is what XRT was asked to move, widened transfers included; the wire is XRT's.

    Args:
        design: the build that the xclbin carries.
        module: the module `pyxrt`, or one that behaves like it.
        xclbin: path of the card's binary.
        device_index: which card.
        kernel: `nearkv_kernel`, or `nearkv_kernel:{instance}` in XRT's notation.
        memory_bytes: size of the buffer object that is this transport's memory, see `check_memory_bytes`.
        clock_ns: monotonic time in nanoseconds.

    Raises:
        ValueError: memory_bytes or device_index out of range, no such file.
        DeviceError: XRT refuses, or this pyxrt cannot access registers.

    """

    def __init__(
        self,
        design: DesignConfig,
        module: Any,
        xclbin: str,
        device_index: int = 0,
        kernel: str = KERNEL_NAME,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        check_memory_bytes(memory_bytes)
        if device_index < 0:
            raise ValueError(f"device_index is {device_index}; allowed: from 0")
        if not Path(xclbin).is_file():
            raise ValueError(f"xclbin is {xclbin!r}; allowed: path of a file")
        self._design = design
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._register_reads = self._register_writes = self._cycles = self._jobs = 0
        self._closed = False
        with self._opening():
            self._device: Any = module.device(device_index)
            uuid = self._device.load_xclbin(xclbin)
            access = module.kernel.cu_access_mode.exclusive
            self._kernel: Any = module.kernel(self._device, uuid, kernel, access)
            if not hasattr(self._kernel, "read_register"):
                raise DeviceError(
                    "transport pyxrt: this pyxrt has no kernel.read_register; XRT up to 2.14 (2022.2) has it"
                )
            group = self._kernel.group_id(MEMORY_ARGUMENT)
            self._memory = PyxrtMemory(module, self._device, group, memory_bytes)

    @property
    def name(self) -> str:
        """Transport name."""
        return "pyxrt"

    @property
    def design(self) -> DesignConfig:
        """Build of the xclbin."""
        return self._design

    @property
    def memory_base(self) -> int:
        """Device address of the buffer object."""
        return self._memory.base

    @property
    def memory_bytes(self) -> int:
        """Size of the buffer object."""
        return self._memory.nbytes

    @property
    def now_ps(self) -> int:
        """Monotonic time since the transport was opened."""
        return (self._clock_ns() - self._start_ns) * PS_PER_NS

    @property
    def counters(self) -> TransportCounters:
        """Totals; wire bytes and TLPs are 0."""
        return TransportCounters(
            payload_bytes_to_device=self._memory.bytes_to_device + WORD_BYTES * self._register_writes,
            payload_bytes_from_device=self._memory.bytes_from_device + WORD_BYTES * self._register_reads,
            device_cycles=self._cycles,
            jobs=self._jobs,
        )

    def read_register(self, offset: int) -> int:
        """Load a word."""
        self._check_register(offset)
        with self._errors(f"read of register {offset:#x}"):
            value = int(self._kernel.read_register(offset))
        self._register_reads += 1
        return value

    def write_register(self, offset: int, value: int) -> None:
        """Store a word."""
        self._check_register(offset, value)
        with self._errors(f"write of register {offset:#x}"):
            self._kernel.write_register(offset, value)
        self._register_writes += 1

    def write_memory(self, address: int, data: Bytes) -> None:
        """Copy to the card."""
        with self._errors(f"write to memory at {address:#x}"):
            self._memory.write(address, data)

    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Copy from the card."""
        with self._errors(f"read of memory at {address:#x}"):
            return self._memory.read(address, nbytes)

    def read_gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Copy rows from the card; one transfer per run of neighbours, since XRT has no descriptor lists."""
        with self._errors(f"gather of {len(addresses)} rows"):
            return self._memory.gather(addresses, row_bytes)

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Poll EVENTS, at least once, until it tells of a job's end; DeviceError if what it reads is none."""
        if timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        deadline_ps = self.now_ps + timeout_ps
        access = RetryingAccess(self)
        while not (events := access.read(reg.EVENTS)):
            if self.now_ps >= deadline_ps:
                raise DeviceTimeout(f"transport pyxrt: no interrupt within {timeout_ps} ps")
        if events & ~reg.EVENTS.used_mask:  # all ones, when the link is down
            raise DeviceError(f"transport pyxrt: EVENTS is {events:#x}, no events")
        self._jobs += 1
        self._cycles += access.read(reg.CYCLES)

    def close(self) -> None:
        """Let XRT free buffer, compute unit and device: it does so when nobody holds them any more."""
        self._closed = True
        self._memory.release()
        self._kernel = self._device = None

    def _check_register(self, offset: int, value: int = 0) -> None:
        if offset % WORD_BYTES or not 0 <= offset < WINDOW_BYTES:
            raise ValueError(
                f"register offset is {offset:#x}; allowed: multiples of {WORD_BYTES} below {WINDOW_BYTES:#x}"
            )
        if not 0 <= value <= _WORD_MAX:
            raise ValueError(f"register value is {value:#x}; allowed: 0 to {_WORD_MAX:#x}")

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """XRT's exceptions as DeviceError: with arguments checked before, a ValueError is XRT's, too."""
        try:
            yield
        except (*_XRT_ERRORS, ValueError) as error:
            raise DeviceError(f"transport pyxrt: open: {error}") from error

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """XRT's exceptions as TransferError."""
        if self._closed:
            raise DeviceError("transport pyxrt is closed")
        try:
            yield
        except _XRT_ERRORS as error:
            raise TransferError(f"transport pyxrt: {what}: {error}") from error


def open_pyxrt(
    design: DesignConfig,
    xclbin: str = "",
    device_index: int = 0,
    kernel: str = KERNEL_NAME,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> PyxrtTransport:
    """Open a card under XRT; arguments as PyxrtTransport.

    Raises:
        ValueError: as PyxrtTransport, or pyxrt is not installed.
        DeviceError: as PyxrtTransport.

    """
    return PyxrtTransport(design, _import_pyxrt(), xclbin, device_index, kernel, memory_bytes)


def _import_pyxrt() -> ModuleType:
    try:
        return importlib.import_module("pyxrt")
    except ImportError as error:
        raise ValueError(
            f"transport pyxrt needs XRT's Python module, which XRT installs (source its setup.sh): {error}"
        ) from error
