"""The native mode's queues in plain Python: what the RTL must answer, and a device for the driver's tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nearkv.device.errors import DeviceTimeout
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.queue_entries import (
    ALIGNED_FIELDS,
    ARGUMENT_FIELDS,
    COMPLETION_BYTES,
    LINE_BYTES,
    NONZERO_FIELDS,
    OPCODE_SCORE,
    RESERVED_BITS,
    SUBMISSION,
    SUBMISSION_BYTES,
    Completion,
    GenericStatus,
    StatusType,
    unpack_submission,
)
from nearkv_hdl.spec.register_map import WORD_BYTES, Register

Bytes = NDArray[np.uint8]
Fault = tuple[int, int, int]  # the kernel's ErrorCode, ERROR_ADDRESS, ERROR_TOKEN
ACCESS_PS = 10**6  # what every access takes


def arguments_of(entry: bytes) -> dict[Register, int]:
    """The kernel's arguments of a submission entry."""
    fields = unpack_submission(entry)
    return {argument: fields[name] * SUBMISSION[name].unit for argument, name in ARGUMENT_FIELDS.items()}


def check_entry(entry: bytes) -> tuple[GenericStatus, int]:
    """Status of an entry that the kernel has not seen, and where its first wrong field begins."""
    fields = unpack_submission(entry)
    if fields["opcode"] != OPCODE_SCORE:
        return GenericStatus.INVALID_OPCODE, 0
    wrong = [name for name, mask in RESERVED_BITS.items() if fields[name] & mask]
    wrong += [name for name in ALIGNED_FIELDS if fields[name] % LINE_BYTES]
    wrong += [name for name in NONZERO_FIELDS if not fields[name]]
    if wrong:
        return GenericStatus.INVALID_FIELD, min(SUBMISSION[name].offset for name in wrong)
    return GenericStatus.SUCCESS, 0


def completion_of(entry: bytes, fault: Fault, sq_head: int, phase: int) -> Completion:
    """What completes an entry whose job, if there is one, ends with `fault`."""
    command_id = unpack_submission(entry)["command_id"]
    status, place = check_entry(entry)
    if status is not GenericStatus.SUCCESS:
        return Completion(command_id, StatusType.GENERIC, status, sq_head, phase, place)
    code, address, token = fault
    if code:
        line = address // LINE_BYTES % (1 << 48)
        return Completion(command_id, StatusType.KERNEL, code, sq_head, phase, token, line)
    return Completion(command_id, StatusType.GENERIC, GenericStatus.SUCCESS, sq_head, phase)


class QueueModel:
    """A device without delay that a QueueDriver can be given. Jobs run when a doorbell is written.

    Args:
        memory_bytes: of host memory, from address 0.
        run: gets the arguments of a job, returns how it ends.

    Attributes:
        memory: uint8 [memory_bytes].
        hangs: nothing is served; the host's deadlines must help.
        interrupts: not yet taken.

    """

    def __init__(self, memory_bytes: int, run: Callable[[dict[Register, int]], Fault]) -> None:
        self.memory = np.zeros(memory_bytes, np.uint8)
        self.hangs = False
        self.interrupts = 0
        self.now_ps = 0
        self._run = run
        tables = [register for table in qr.PAGES.values() for register in table]
        self._values = {register: qr.CONSTANTS.get(register, register.reset or 0) for register in tables}
        self._places = {
            qr.bar_offset(register) + WORD_BYTES * index: (register, index)
            for register in tables
            for index in range(register.words)
        }
        self._restart()

    def _restart(self) -> None:
        self._sq_head, self._cq_tail, self._phase = 0, 0, 1
        for doorbell in qr.DOORBELLS:
            self._values[doorbell] = 0

    def read_register(self, offset: int) -> int:
        """One word of BAR0."""
        self.now_ps += ACCESS_PS
        register, index = self._places[offset]
        return self._values[register] >> 32 * index & 0xFFFF_FFFF

    def write_register(self, offset: int, value: int) -> None:
        """One word of BAR0, and all that follows from it."""
        self.now_ps += ACCESS_PS
        register, index = self._places[offset]
        kept = self._values[register] & ~(0xFFFF_FFFF << 32 * index)
        self._values[register] = kept | value << 32 * index
        if register is qr.CC and not self.hangs:
            usable = all(qr.AQA.unpack(self._values[qr.AQA]).values())
            ready = value and usable
            cause = qr.FatalCause.CONFIGURATION if value and not usable else qr.FatalCause.NONE
            self._stop(cause)
            self._values[qr.CSTS] = qr.CSTS.pack(rdy=int(ready), cfs=int(cause != 0))
            self._restart()
        elif register in qr.DOORBELLS and not self.hangs:
            self._serve()

    def _stop(self, cause: qr.FatalCause) -> None:
        self._values[qr.FATAL_CAUSE] = cause
        if cause:
            self._values[qr.CSTS] |= qr.CSTS.mask("cfs")

    def _serve(self) -> None:
        sizes = qr.AQA.unpack(self._values[qr.AQA])
        tail, head = self._values[qr.SQ_TAIL_DOORBELL], self._values[qr.CQ_HEAD_DOORBELL]
        if tail > sizes["asqs"]:
            return self._stop(qr.FatalCause.SQ_DOORBELL)
        while self._sq_head != tail and (self._cq_tail + 1) % (sizes["acqs"] + 1) != head:
            at = self._values[qr.ASQ] + SUBMISSION_BYTES * self._sq_head
            entry = self.memory[at : at + SUBMISSION_BYTES].tobytes()
            self._sq_head = (self._sq_head + 1) % (sizes["asqs"] + 1)
            valid = check_entry(entry)[0] is GenericStatus.SUCCESS
            fault = self._run(arguments_of(entry)) if valid else (0, 0, 0)
            raw = completion_of(entry, fault, self._sq_head, self._phase).pack()
            at = self._values[qr.ACQ] + COMPLETION_BYTES * self._cq_tail
            self.memory[at : at + COMPLETION_BYTES] = np.frombuffer(raw, np.uint8)
            self.interrupts += 1
            self._cq_tail += 1
            if self._cq_tail > sizes["acqs"]:
                self._cq_tail, self._phase = 0, 1 - self._phase
        return None

    def write_memory(self, address: int, data: Bytes) -> None:
        """Host memory."""
        self.memory[address : address + len(data)] = data

    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Host memory."""
        return self.memory[address : address + nbytes].copy()

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Take one, or let the time pass."""
        if not self.interrupts:
            self.now_ps += timeout_ps
            raise DeviceTimeout(f"no interrupt within {timeout_ps} ps")
        self.interrupts -= 1
