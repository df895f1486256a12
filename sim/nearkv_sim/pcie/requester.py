"""What host and devices have in common: reads with a completion timeout, completions cut and paced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cocotb
from cocotb.queue import Queue
from cocotb.triggers import Timer
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpType

from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.hardware.pcie_tlp import split_completion, split_request
from nearkv_sim.pcie.frames import now_ps

# Range A of Device Control 2 is 50 us to 10 ms (Base Spec 7.5.3.16); its lower end keeps simulations short.
COMPLETION_TIMEOUT_PS = 50_000_000


class ReadFailed(Exception):
    """A read has no data; the message says why."""


@dataclass
class Parties:
    """What a run's requesters and completers share.

    Attributes:
        config: sizes, latencies, tags.
        refusals: status by (requester, tag) of requests that a fault plan lets be refused.
        events: what went wrong, by name.

    """

    config: PcieLinkConfig
    refusals: dict[tuple[str, int], CplStatus]
    events: Counter[str]


def request(read: bool, address: int, nbytes: int, requester: Any, data: bytes = b"") -> Tlp:
    """A memory request, with a 64-bit address where it needs one."""
    tlp = Tlp()
    wide = address >> 32 != 0
    if read:
        tlp.fmt_type = TlpType.MEM_READ_64 if wide else TlpType.MEM_READ
        tlp.set_addr_be(address, nbytes)
    else:
        tlp.fmt_type = TlpType.MEM_WRITE_64 if wide else TlpType.MEM_WRITE
        tlp.set_addr_be_data(address, data)
    tlp.requester_id = requester
    return tlp


class Requester:
    """Reads and writes of one function, or of the host's processors.

    Formula: transfers are cut by `split_request`; each read request holds a tag until its last completion,
    or until nothing has come for COMPLETION_TIMEOUT_PS. Completions whose tag is free are dropped.

    Args:
        function: cocotbext-pcie's function or root complex: tags, queues and `send`.
        parties: shared state.

    """

    def __init__(self, function: Any, parties: Parties) -> None:
        self._function, self._parties = function, parties

    async def read(self, address: int, nbytes: int) -> bytes:
        """Read that many bytes. Raises ReadFailed for the first part that has no data, after all are over."""
        tasks = []
        for at, size in split_request(address, nbytes, self._parties.config.max_read_request_bytes):
            tlp = request(True, at, size, self._function.pcie_id)
            tlp.tag = await self._function.alloc_tag()
            await self._function.send(tlp)
            tasks.append(cocotb.start_soon(self._collect(tlp.tag, size)))
        parts = [await task for task in tasks]
        for part in parts:
            if isinstance(part, str):
                raise ReadFailed(part)
        return b"".join(part for part in parts if isinstance(part, bytes))

    async def write(self, address: int, data: bytes) -> None:
        """Write, in TLPs of at most the maximum payload; returns when the last has been queued."""
        done = 0
        for at, size in split_request(address, len(data), self._parties.config.max_payload_bytes):
            part = data[done : done + size]
            await self._function.send(request(False, at, size, self._function.pcie_id, part))
            done += size

    def refused(self, completion: Tlp) -> bool:
        """Whether nobody waits for a completion; it is dropped then."""
        if self._function.tag_active[completion.tag]:
            return False
        self._parties.events["unexpected completion"] += 1
        completion.release_fc()
        return True

    def in_flight(self) -> int:
        """Tags in use."""
        return sum(self._function.tag_active)

    async def _collect(self, tag: int, nbytes: int) -> bytes | str:
        """Data of one request, or why there is none."""
        data, failure = bytearray(), ""
        while len(data) < nbytes and not failure:
            completion = await self._function.recv_cpl(tag, COMPLETION_TIMEOUT_PS, "ps")
            if completion is None:
                failure = "completion timeout"
            elif completion.status != CplStatus.SC:
                failure = f"completion with status {completion.status.name}"
            elif completion.ep:
                failure = "poisoned completion"
            else:
                first = completion.lower_address % 4
                data += completion.get_data()[first : first + min(completion.byte_count, nbytes - len(data))]
        if failure:
            self._parties.events[failure] += 1
        while not self._function.rx_cpl_queues[tag].empty():
            self._function.rx_cpl_queues[tag].get_nowait().release_fc()
        self._function.release_tag(tag)
        return failure or bytes(data)


class Completer:
    """Answers reads in their order, each `latency_ps` after it came, or when its data is there if later.

    Args:
        send: takes completions.
        completer_id: whose they are.
        parties: shared state.
        latency_ps: without load.

    """

    def __init__(
        self, send: Callable[[Tlp], Any], completer_id: Callable[[], Any], parties: Parties, latency_ps: int
    ) -> None:
        self._send, self._completer_id, self._parties = send, completer_id, parties
        self._latency_ps = latency_ps
        self._answers: Queue[tuple[int, Tlp, Any]] = Queue()
        cocotb.start_soon(self._run())

    def answer(self, tlp: Tlp, data: bytes | Any | None) -> None:
        """Queue the answer to a read: its bytes, None for a failure, or a task that returns either."""
        self._answers.put_nowait((now_ps() + self._latency_ps, tlp, data))

    def waiting(self) -> int:
        """Reads not answered yet."""
        return self._answers.qsize()

    async def _run(self) -> None:
        while True:
            due_ps, tlp, data = await self._answers.get()
            if data is not None and not isinstance(data, bytes):
                data = await data
            if (wait_ps := due_ps - now_ps()) > 0:
                await Timer(wait_ps, "ps")
            refusal = self._parties.refusals.pop((str(tlp.requester_id), tlp.tag), None)
            if refusal is not None or data is None:
                status = CplStatus.CA if refusal is None else refusal
                await self._send(Tlp.create_completion_for_tlp(tlp, self._completer_id(), False, status))
            else:
                await self._complete(tlp, data)

    async def _complete(self, tlp: Tlp, data: bytes) -> None:
        config = self._parties.config
        start = tlp.address + tlp.get_first_be_offset()
        pieces = split_completion(
            start, len(data), config.max_payload_bytes, config.read_completion_boundary_bytes
        )
        for at, size in pieces:
            completion = Tlp.create_completion_data_for_tlp(tlp, self._completer_id())
            done = at - start
            padded = bytes(at % 4) + data[done : done + size]
            completion.set_data(padded + bytes(-len(padded) % 4))
            completion.byte_count = len(data) - done
            completion.lower_address = at & 0x7F
            await self._send(completion)


def write_span(tlp: Tlp) -> tuple[int, bytes]:
    """Address and bytes of a memory write whose enabled bytes are contiguous, as all here are."""
    first = tlp.get_first_be_offset()
    return tlp.address + first, bytes(tlp.get_data()[first : first + tlp.get_be_byte_count()])
