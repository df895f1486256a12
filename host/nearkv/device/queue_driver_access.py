"""What the driver of the queues needs of a platform, and how jobs and errors look to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nearkv.device.errors import DeviceError, JobError
from nearkv.device.transport import Bytes
from nearkv_hdl.spec.queue_entries import (
    ARGUMENT_FIELDS,
    LINE_BYTES,
    OPCODE_SCORE,
    RESERVED_BITS,
    SUBMISSION,
    Completion,
    pack_submission,
)
from nearkv_hdl.spec.register_map import Register
from nearkv_hdl.spec.registers import ErrorCode


class QueueAccess(Protocol):
    """What the driver needs of a platform: BAR0, memory that the device reaches, interrupts, time.

    Every `Transport` whose registers are BAR0 fits.
    """

    @property
    def now_ps(self) -> int:
        """Time in picoseconds; never runs backwards."""

    def read_register(self, offset: int) -> int:
        """One 32-bit word of BAR0."""

    def write_register(self, offset: int, value: int) -> None:
        """Write one 32-bit word of BAR0, behind everything written to memory before."""

    def write_memory(self, address: int, data: Bytes) -> None:
        """Copy uint8 [nbytes] to memory, at an address as the device uses it."""

    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Copy from that memory, uint8 [nbytes]."""

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Take one interrupt, waiting for at most `timeout_ps`; DeviceTimeout if none came."""


def submission_of(arguments: Mapping[Register, int], command_id: int) -> bytes:
    """The submission entry of a job.

    Args:
        arguments: the kernel's arguments; those not named are 0.
        command_id: comes back in the completion.

    Raises ValueError for a register that entries have no field for, a window that is no multiple of its unit,
    a reserved bit, and a value that its field does not hold.

    """
    values = {}
    for register, value in arguments.items():
        if register not in ARGUMENT_FIELDS:
            allowed = ", ".join(argument.name for argument in ARGUMENT_FIELDS)
            raise ValueError(f"argument is {register.name}; allowed: {allowed}")
        name = ARGUMENT_FIELDS[register]
        unit = SUBMISSION[name].unit
        if value % unit:
            raise ValueError(f"{register.name} is {value}; allowed: multiples of {unit}")
        reserved = RESERVED_BITS.get(name, 0)
        if value & reserved:
            raise ValueError(f"{register.name} is {value:#x}; allowed: 0 in bits {reserved:#x}, reserved")
        values[name] = value // unit
    return pack_submission(opcode=OPCODE_SCORE, command_id=command_id, **values)


def job_error(what: str, completion: Completion) -> DeviceError:
    """The error that a failed completion stands for."""
    status = completion.status
    address = completion.address_line * LINE_BYTES
    if isinstance(status, ErrorCode):
        text = f"{what}: error {status.name} in the line at {address:#x}, block of token {completion.token}"
        return JobError(text, status, address, completion.token)
    name = status.name if status is not None else f"{completion.status_type}/{completion.status_code:#x}"
    return DeviceError(f"{what}: entry refused, status {name}, byte {completion.token} of it")
