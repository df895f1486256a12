"""Transfers that are repeated once, and registers by their entry in the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from nearkv.device.errors import DeviceError, TransferError
from nearkv.device.transport import Bytes, Int64, Transport
from nearkv_hdl.spec.register_map import WORD_BYTES, Register

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class RetryingAccess:
    """A transport whose failed transfers are repeated once; DeviceError, naming both, if that fails too.

    Attributes:
        retries: transfers that were repeated.

    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.retries = 0

    def read(self, register: Register) -> int:
        """Value of a register, all its words."""
        words = [
            self.transfer(f"read of {register.name}", self.transport.read_register, offset)
            for offset in range(register.offset, register.offset + register.size_bytes, WORD_BYTES)
        ]
        return sum(word << (32 * index) for index, word in enumerate(words))

    def write(self, register: Register, value: int) -> None:
        """Write all words of a register, the lowest first."""
        for at in range(0, register.size_bytes, WORD_BYTES):
            word = value >> (8 * at) & 0xFFFF_FFFF
            self.transfer(
                f"write of {register.name}", self.transport.write_register, register.offset + at, word
            )

    def write_memory(self, address: int, data: Bytes) -> None:
        """Copy uint8 [nbytes] to the device."""
        self.transfer(f"write to memory at {address:#x}", self.transport.write_memory, address, data)

    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Copy from the device, uint8 [nbytes]."""
        return self.transfer(f"read of memory at {address:#x}", self.transport.read_memory, address, nbytes)

    def read_gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Copy rows from the device, uint8 [rows, row_bytes]."""
        return self.transfer(
            f"gather of {len(addresses)} rows", self.transport.read_gather, addresses, row_bytes
        )

    def transfer(
        self,
        what: str,
        operation: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Run one transfer, which messages call `what`, and once more if it failed."""
        try:
            return operation(*args, **kwargs)
        except TransferError:
            self.retries += 1
        try:
            return operation(*args, **kwargs)
        except TransferError as error:
            raise DeviceError(f"transport {self.transport.name}: {what} failed twice: {error}") from error
