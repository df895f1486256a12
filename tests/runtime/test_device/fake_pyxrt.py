"""A stand-in for XRT's module `pyxrt` (XRT 2.14) over a simulated card: accepts and refuses what XRT does.

C++ exceptions arrive in Python as pybind11 translates them: std::out_of_range as IndexError, std::bad_alloc
as MemoryError, others as RuntimeError.
"""

import weakref
from enum import Enum

import numpy as np

from nearkv.device.errors import DeviceError
from nearkv_hdl.spec import registers as reg

XCLBIN_MAGIC = b"xclbin2\0"
KERNEL = "nearkv_kernel"
GROUP = 5
MAX_MIRROR_BYTES = 1 << 32
SYNC_ALIGN_BYTES = 64
POINTERS = [index for index, argument in enumerate(reg.ARGUMENTS) if argument.name.endswith("_ADDRESS")]


class CuAccessMode(Enum):
    exclusive = 0
    shared = 1
    none = 2


class BoFlags(Enum):
    normal = 0
    device_only = 1


class xclBOSyncDirection(Enum):
    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1


class Device:
    def __init__(self, module, index):
        if index != 0:
            raise RuntimeError(f"Could not open device with index '{index}'")
        self.module = module
        self.uuid = None
        module.track(self)

    def load_xclbin(self, path):
        with open(path, "rb") as file:
            if file.read(len(XCLBIN_MAGIC)) != XCLBIN_MAGIC:
                raise RuntimeError("Invalid xclbin: bad magic")
        self.uuid = object()
        return self.uuid


class Kernel:
    """That of XRT from 2.15 on."""

    cu_access_mode = CuAccessMode

    def __init__(self, device, uuid, name, mode=CuAccessMode.shared):
        if uuid is not device.uuid:
            raise RuntimeError("xclbin with that uuid is not loaded")
        if name not in (KERNEL, f"{KERNEL}:{{{KERNEL}_1}}"):
            raise RuntimeError(f"No compute units matching '{name}'")
        if mode is CuAccessMode.exclusive and device.module.is_busy:
            raise RuntimeError("failed to open ip context: Device or resource busy")
        self.device = device
        self.mode = mode
        device.module.track(self)

    def group_id(self, index):
        if not 0 <= index < len(reg.ARGUMENTS):
            raise IndexError(f"no argument {index}")
        if index not in POINTERS:
            raise RuntimeError(f"argument {index} has no memory connection")
        return GROUP


class KernelWithRegisters(Kernel):
    """That of XRT up to 2.14."""

    def read_register(self, offset):
        self._check(offset)
        return self.device.module.card.read_register(offset)

    def write_register(self, offset, value):
        self._check(offset)
        self.device.module.card.write_register(offset, value)

    def _check(self, offset):
        if self.mode is not CuAccessMode.exclusive:
            raise RuntimeError("Cannot read or write kernel with shared access")
        if not 0 <= offset < 4096 or offset % 4:
            raise IndexError("Cannot read or write outside kernel register space")
        self.device.module.maybe_fail()


class Bo:
    flags = BoFlags

    def __init__(self, device, size, flags, group):
        card = device.module.card
        if group != GROUP:
            raise RuntimeError(f"no memory bank with index {group}")
        if flags is BoFlags.normal and size > device.module.host_bytes:
            raise MemoryError("std::bad_alloc")
        if size > card.memory_bytes:
            raise RuntimeError("Failed to allocate BO: Cannot allocate memory")
        self.device = device
        self.mirror = np.zeros(size, np.uint8)
        self.has_mirror = flags is BoFlags.normal
        device.module.track(self)

    def address(self):
        return self.device.module.card.memory_base

    def write(self, data, seek):
        view = memoryview(data).cast("B")
        if seek + len(view) > len(self.mirror):
            raise RuntimeError("attempting to write past buffer size")
        self.mirror[seek : seek + len(view)] = view

    def read(self, size, skip):
        if skip + size > len(self.mirror):
            raise RuntimeError("attempting to read past buffer size")
        return self.mirror[skip : skip + size].view(np.int8).copy()

    def sync(self, direction, size, offset):
        module = self.device.module
        module.maybe_fail()
        if not self.has_mirror or size < 1 or offset < 0 or offset + size > len(self.mirror):
            raise RuntimeError("unable to sync BO: Invalid argument")
        if size % SYNC_ALIGN_BYTES or offset % SYNC_ALIGN_BYTES:
            raise RuntimeError("unable to sync BO: unaligned transfer")
        module.syncs.append((direction, offset, size))
        address = self.address() + offset
        if direction is xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE:
            module.card.write_memory(address, self.mirror[offset : offset + size])
        else:
            self.mirror[offset : offset + size] = self._fetch(address, size)

    def _fetch(self, address, size):
        """DRAM has no bytes that were never written: they read as whatever they are."""
        card = self.device.module.card
        try:
            return card.read_memory(address, size)
        except DeviceError:
            if size == 1:
                return self.device.module.garbage.integers(0, 256, 1, dtype=np.uint8)
        half = size // 2
        return np.concatenate([self._fetch(address, half), self._fetch(address + half, size - half)])


class FakePyxrt:
    """The module.

    Attributes:
        card: simulated card behind it.
        failures: register accesses and syncs that are still to fail.
        is_busy: another process holds the compute unit.
        host_bytes: what the host has for mirrors.
        syncs: direction, offset and size of every transfer.

    """

    xclBOSyncDirection = xclBOSyncDirection
    bo = Bo

    def __init__(self, card, has_registers=True):
        self.card = card
        self.kernel = KernelWithRegisters if has_registers else Kernel
        self.failures = 0
        self.is_busy = False
        self.host_bytes = MAX_MIRROR_BYTES
        self.syncs = []
        self.garbage = np.random.default_rng(7)
        self._tracked = []

    def device(self, index):
        return Device(self, index)

    def track(self, what):
        self._tracked.append(weakref.ref(what))

    def live(self):
        """Objects of this module that somebody still holds."""
        return [type(ref()).__name__ for ref in self._tracked if ref() is not None]

    def maybe_fail(self):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("Input/output error")
