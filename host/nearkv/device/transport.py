"""`Transport`: how the driver reaches a device. Implementations are entry points `nearkv.transports`."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.design import DesignConfig

ENTRY_POINT_GROUP = "nearkv.transports"
Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class TransportCounters:
    """Totals since the transport was opened. Each field only grows; the difference of two is an interval's.

    Payload is everything carried on behalf of software: data, descriptors, registers, completions. Wire
    bytes add headers, framing and link-layer packets; a transport that cannot see its wire leaves them and
    the TLPs at 0.
    """

    payload_bytes_to_device: int = 0
    payload_bytes_from_device: int = 0
    wire_bytes_to_device: int = 0
    wire_bytes_from_device: int = 0
    tlps_to_device: int = 0
    tlps_from_device: int = 0
    device_cycles: int = 0  # clock cycles of all finished jobs
    jobs: int = 0  # finished jobs, failed ones included

    def __sub__(self, earlier: TransportCounters) -> TransportCounters:
        """What has been added since `earlier`."""
        return TransportCounters(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )


class Transport(ABC):
    """One opened device. All calls are synchronous, and are made from one thread.

    Addresses are the device's own, within [memory_base, memory_base + memory_bytes). Every method raises
    ValueError for an argument out of range, TransferError for a failure that a retry may cure, and
    DeviceError for any other, use after `close` included.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name it is opened under."""

    @property
    @abstractmethod
    def design(self) -> DesignConfig:
        """The build that the device is expected to carry."""

    @property
    @abstractmethod
    def memory_base(self) -> int:
        """First device address that belongs to this transport's user."""

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Size of that memory."""

    @property
    @abstractmethod
    def now_ps(self) -> int:
        """Time in picoseconds, simulated or of a monotonic clock; never runs backwards."""

    @property
    @abstractmethod
    def counters(self) -> TransportCounters:
        """Totals up to now."""

    @abstractmethod
    def read_register(self, offset: int) -> int:
        """One 32-bit register word; `offset` in bytes, a multiple of 4 within the control window."""

    @abstractmethod
    def write_register(self, offset: int, value: int) -> None:
        """Write one 32-bit register word. May return before the device has it; later calls stay behind it."""

    @abstractmethod
    def write_memory(self, address: int, data: Bytes) -> None:
        """Copy uint8 [nbytes], at least one, to device memory; returns when the device has all of it."""

    @abstractmethod
    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Copy at least one byte from device memory: a new uint8 [nbytes]."""

    @abstractmethod
    def read_gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Copy many rows of equal size with one descriptor list.

        Args:
            addresses: int64 [rows], at least one, in any order.
            row_bytes: bytes of each row.

        Returns:
            A new uint8 [rows, row_bytes], in the order of `addresses`.

        """

    @abstractmethod
    def wait_interrupt(self, timeout_ps: int) -> None:
        """Take one interrupt, waiting for at most `timeout_ps`; DeviceTimeout if none came."""

    @abstractmethod
    def close(self) -> None:
        """Release the device; closing twice is allowed."""

    def __enter__(self) -> Self:
        """Return the open transport."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def transport_options(name: str) -> list[str]:
    """Names of the options that an installed transport takes; ValueError for an unknown transport."""
    return [option for option in inspect.signature(_factory(name)).parameters if option != "design"]


def open_transport(name: str, design: DesignConfig, **options: Any) -> Transport:
    """Open an installed transport by name.

    Args:
        name: an entry point of the group `nearkv.transports`; its object is called with the rest.
        design: the build that the device carries.
        options: keyword arguments of that transport.

    Raises:
        ValueError: an unknown name or option (the message lists the known ones), or a bad value.

    """
    known = transport_options(name)
    for option in options:
        if option not in known:
            raise ValueError(f"option {option!r} of transport {name}; allowed: {', '.join(known) or 'none'}")
    transport = _factory(name)(design, **options)
    if not isinstance(transport, Transport):
        raise TypeError(f"entry point {name} of {ENTRY_POINT_GROUP} made a {type(transport).__name__}")
    return transport


def _factory(name: str) -> Callable[..., object]:
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        raise ValueError(f"transport is {name!r}; allowed: {', '.join(sorted(found))}")
    factory: Callable[..., object] = found[name].load()
    return factory
