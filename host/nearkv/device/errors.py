"""What can go wrong with a device. All are OSErrors: the fault lies outside the program's own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nearkv_hdl.spec.registers import ErrorCode, JobState


class DeviceError(OSError):
    """The device or its link failed; the message names the operation and the cause."""


class TransferError(DeviceError):
    """One transfer failed and may be repeated: transports raise it, the driver retries once."""


class DataError(DeviceError):
    """Memory does not hold what it should: nothing was ever written there, or something else."""


class DeviceTimeout(DeviceError, TimeoutError):
    """No interrupt before the deadline.

    Attributes:
        state: what the device said about the job when the deadline passed; None if nobody asked yet.
        cycles: clock cycles the device had then spent on it.

    """

    def __init__(self, message: str, state: JobState | None = None, cycles: int = 0) -> None:
        super().__init__(message)
        self.state = state
        self.cycles = cycles


class JobError(DeviceError):
    """The device stopped a job.

    Attributes:
        code: the sticky error code.
        address: device address the error is about, 0 if none.
        token: first token of the block the error is about.
        tokens: how many tokens from there on, 0 if it is about no block.

    """

    def __init__(self, message: str, code: ErrorCode, address: int, token: int, tokens: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.address = address
        self.token = token
        self.tokens = tokens


@contextmanager
def of_stream(name: str, block_tokens: int) -> Iterator[None]:
    """Add the stream, and the block it is about, to a JobError from inside."""
    try:
        yield
    except JobError as error:
        block = f", block {error.token // block_tokens}" if error.tokens else ""
        message = f"stream {name!r}{block}: {error}"
        raise JobError(message, error.code, error.address, error.token, error.tokens) from error
