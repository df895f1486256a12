"""Driver of the native PCIe mode: submits jobs to a pair of queues in host memory, collects completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.queue_driver_access import QueueAccess, job_error, submission_of
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.queue_entries import (
    COMPLETION_BYTES,
    SUBMISSION_BYTES,
    Completion,
    unpack_submission,
)
from nearkv_hdl.spec.register_map import WORD_BYTES, Register

_COMMAND_IDS = 1 << 16


class QueueDriver:
    """One pair of queues. All calls are synchronous, and are made from one thread.

    Args:
        access: the platform.
        sq_address, cq_address: where the queues lie, as the device uses it, each on a page of its own.
        entries: of either queue, from 2; one less may be under way.
        interrupts: wait for interrupts; without them the status register is polled.

    Raises ValueError for an argument out of range.

    """

    def __init__(
        self,
        access: QueueAccess,
        sq_address: int,
        cq_address: int,
        entries: int = 64,
        *,
        interrupts: bool = True,
    ) -> None:
        if not 2 <= entries <= qr.MAX_QUEUE_ENTRIES:
            raise ValueError(f"entries is {entries}; allowed: 2 to {qr.MAX_QUEUE_ENTRIES}")
        for name, address in (("sq_address", sq_address), ("cq_address", cq_address)):
            if address % qr.QUEUE_ALIGN_BYTES:
                raise ValueError(f"{name} is {address:#x}; allowed: multiples of {qr.QUEUE_ALIGN_BYTES}")
        self.access = access
        self.entries = entries
        self._sq_address, self._cq_address = sq_address, cq_address
        self._interrupts = interrupts
        self._next_id = 0
        self._reset()

    def _reset(self) -> None:
        self._tail, self._head, self._phase = 0, 0, 1
        self._under_way: deque[int] = deque()  # identifiers, the oldest first

    @property
    def free(self) -> int:
        """Jobs that can be submitted before a completion is taken."""
        return self.entries - 1 - len(self._under_way)

    def enable(self) -> None:
        """Begin a new life of the queues, whatever the device was doing.

        Raises DeviceError if the device has another version, smaller queues, or says that it cannot;
        DeviceTimeout if it is not ready in the time it promises.
        """
        version = self._read(qr.VS)
        if version != qr.QUEUE_VERSION:
            raise DeviceError(f"VS is {version:#x}; this driver knows {qr.QUEUE_VERSION:#x}")
        most = qr.CAP.unpack(self._read(qr.CAP))["mqes"] + 1
        if self.entries > most:
            raise DeviceError(f"queues of {self.entries} entries; the device has up to {most}")
        self.disable()
        empty = np.zeros(self.entries * COMPLETION_BYTES, np.uint8)
        self.access.write_memory(self._cq_address, empty)
        self._write(qr.AQA, qr.AQA.pack(asqs=self.entries - 1, acqs=self.entries - 1))
        self._write(qr.ASQ, self._sq_address)
        self._write(qr.ACQ, self._cq_address)
        self._write(qr.CC, qr.CC.pack(en=1))
        self._wait_ready(1)

    def disable(self) -> None:
        """Drop all jobs; afterwards the device writes nothing more. DeviceTimeout if it does not stop."""
        self._write(qr.CC, qr.CC.pack(en=0))
        self._wait_ready(0)
        self._reset()

    def submit(self, *jobs: Mapping[Register, int]) -> list[int]:
        """Queue jobs with one doorbell; returns their command identifiers, in order.

        Raises ValueError, and submits nothing, for more jobs than `free` and as `submission_of`.
        """
        identifiers = [(self._next_id + index) % _COMMAND_IDS for index in range(len(jobs))]
        entries = [submission_of(job, key) for job, key in zip(jobs, identifiers, strict=True)]
        self.submit_entries(*entries)
        self._next_id = (self._next_id + len(jobs)) % _COMMAND_IDS
        return identifiers

    def submit_entries(self, *entries: bytes) -> None:
        """Queue entries as they are, 64 bytes each, with one doorbell.

        Raises ValueError, and submits nothing, for more than `free` and for an entry of another size. What
        the platform raises while entries are written leaves the queue as it was, too; after an error at the
        doorbell the device may have seen it, and `enable` begins anew.
        """
        if not 1 <= len(entries) <= self.free:
            raise ValueError(f"{len(entries)} jobs at once; allowed: 1 to {self.free}, the free entries")
        for entry in entries:
            if len(entry) != SUBMISSION_BYTES:
                raise ValueError(f"an entry has {len(entry)} bytes; allowed: {SUBMISSION_BYTES}")
        tail = self._tail
        for entry in entries:
            address = self._sq_address + tail * SUBMISSION_BYTES
            self.access.write_memory(address, np.frombuffer(entry, np.uint8))
            tail = (tail + 1) % self.entries
        self._tail = tail
        self._under_way.extend(unpack_submission(entry)["command_id"] for entry in entries)
        self._write(qr.SQ_TAIL_DOORBELL, tail)

    def wait(self, timeout_ps: int) -> Completion:
        """Take the next completion, waiting for at most `timeout_ps`.

        Raises ValueError if no job is under way or the timeout is below 1, DeviceTimeout if no completion
        came, DeviceError if the device has stopped or the completion is not the oldest job's.
        """
        if not self._under_way:
            raise ValueError("no job is under way; allowed: a wait after a submit")
        if timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        deadline_ps = self.access.now_ps + timeout_ps
        while (completion := self._poll()) is None:
            self._check_status()
            left_ps = deadline_ps - self.access.now_ps
            if left_ps < 1:
                raise DeviceTimeout(f"job {self._under_way[0]}: no completion within {timeout_ps} ps")
            if self._interrupts:
                self._sleep(left_ps)
        return completion

    def run(self, arguments: Mapping[Register, int], timeout_ps: int) -> Completion:
        """Run one job while no other is under way.

        Raises ValueError if one is, and as `submit`; JobError if the kernel stopped the job, DeviceError if
        the entry was refused; else as `wait`.
        """
        if self._under_way:
            raise ValueError(f"{len(self._under_way)} jobs are under way; allowed: none")
        (identifier,) = self.submit(arguments)
        completion = self.wait(timeout_ps)
        if completion.failed:
            raise job_error(f"job {identifier}", completion)
        return completion

    def _poll(self) -> Completion | None:
        """The next completion if it is there."""
        raw = self.access.read_memory(self._cq_address + self._head * COMPLETION_BYTES, COMPLETION_BYTES)
        completion = Completion.unpack(raw.tobytes())
        if completion.phase != self._phase:
            return None
        self._head += 1
        if self._head == self.entries:
            self._head, self._phase = 0, 1 - self._phase
        self._write(qr.CQ_HEAD_DOORBELL, self._head)
        expected = self._under_way.popleft()
        if completion.command_id != expected:
            raise DeviceError(f"completion of job {completion.command_id}; job {expected} is the oldest")
        return completion

    def _sleep(self, timeout_ps: int) -> None:
        """Until an interrupt or the deadline; what has happened is looked at by the caller."""
        try:
            self.access.wait_interrupt(timeout_ps)
        except DeviceTimeout:
            return

    def _check_status(self) -> None:
        status = qr.CSTS.unpack(self._read(qr.CSTS))
        if status["cfs"] or not status["rdy"]:
            raise DeviceError(f"the device serves no queues: {self._cause()}")

    def _cause(self) -> str:
        cause = self._read(qr.FATAL_CAUSE)
        known = [member.name for member in qr.FatalCause if member == cause]
        return f"FATAL_CAUSE is {known[0] if known else cause}"

    def _wait_ready(self, ready: int) -> None:
        """Wait for CSTS.rdy to follow CC.en, as long as CAP allows."""
        units = max(1, qr.CAP.unpack(self._read(qr.CAP))["to"])
        deadline_ps = self.access.now_ps + units * qr.READY_TIMEOUT_UNIT_PS
        while True:
            status = qr.CSTS.unpack(self._read(qr.CSTS))
            if ready and status["cfs"]:
                raise DeviceError(f"the device refuses the queues: {self._cause()}")
            if status["rdy"] == ready and not status["cfs"]:
                return
            if self.access.now_ps > deadline_ps:
                raise DeviceTimeout(f"CSTS.rdy is not {ready} within {units} · 500 ms")

    def _read(self, register: Register) -> int:
        offset = qr.bar_offset(register)
        words = [self.access.read_register(offset + WORD_BYTES * index) for index in range(register.words)]
        return sum(word << 32 * index for index, word in enumerate(words))

    def _write(self, register: Register, value: int) -> None:
        offset = qr.bar_offset(register)
        for index in range(register.words):
            word = value >> 32 * index & 0xFFFF_FFFF
            self.access.write_register(offset + WORD_BYTES * index, word)
