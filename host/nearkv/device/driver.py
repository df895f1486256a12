"""`ScorerDriver`: the one synchronous driver of the scoring kernel, for every transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.crc import crc32c
from nearkv.codec.query import FoldedQuery
from nearkv.device.access import RetryingAccess
from nearkv.device.descriptors import StoredBlocks, job_image
from nearkv.device.errors import DataError, DeviceError, DeviceTimeout, JobError
from nearkv.device.job_arguments import JobPlaces
from nearkv.device.memory import BankAllocator, ScratchMemory
from nearkv.device.top_scores import Selection, beside, merge, unpack_selection
from nearkv.device.transport import Bytes, Transport
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES
from nearkv_hdl.spec.register_map import Register

DEFAULT_TIMEOUT_PS = 10**12  # 1 s: the whole of a SmartSSD's 4 GB at its memory's rate takes a quarter of it
_REPEATED = (JobError, DeviceTimeout, DataError)


@dataclass(frozen=True)
class JobCounters:
    """The kernel's performance counters of its last job."""

    cycles: int
    tokens: int
    streamed_bytes: int


class ScorerDriver:
    """Programs scoring jobs through a transport and reads their results.

    A failed transfer, and a job that failed, did not finish or whose results are not the ones that the kernel
    wrote, is repeated once; the second failure is the caller's, with the kernel reset, so that the next job
    finds it clean. After any other failure, a link that is down among them, the next job resets it.

    Args:
        transport: an open transport; stays the caller's to close.
        timeout_ps: how long one job may take, from its start to its interrupt.

    Attributes:
        access: registers and memory, with failed transfers repeated once.
        job_retries: jobs that were repeated.

    Raises:
        ValueError: timeout_ps below 1.
        DeviceError: the device is not the kernel that `transport.design` describes.

    """

    def __init__(self, transport: Transport, timeout_ps: int = DEFAULT_TIMEOUT_PS) -> None:
        if timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        self.transport = transport
        self.design = transport.design
        self.access = RetryingAccess(transport)
        self.job_retries = 0
        self._timeout_ps = timeout_ps
        self._abandoned = False  # a job that was begun and not brought to an end
        self._allocator = BankAllocator(transport.memory_base, transport.memory_bytes, self.design)
        self._scratch = ScratchMemory(self._allocator)
        self._check_identity()
        self._reset()

    def allocate(self, nbytes: int, purpose: str, align_bytes: int = BLOCK_ALIGN_BYTES) -> int:
        """Device memory for good, in one piece; ValueError naming the purpose if it does not fit."""
        return self._allocator.allocate(nbytes, align_bytes, purpose)

    def allocate_blocks(
        self, counts: Sequence[int], block_bytes: int, purpose: str
    ) -> list[list[tuple[int, int]]]:
        """Device memory for good for key blocks, each where its key master reads it.

        Args:
            counts: blocks of each of the design's key masters.
            block_bytes: of one block, with all that lies beside it.
            purpose: what messages call it.

        Returns:
            by master (address, blocks) of each piece, on addresses that blocks may have.

        Raises:
            ValueError: they do not all fit; then no memory is taken.

        """
        return self._allocator.allocate_units(counts, block_bytes, BLOCK_ALIGN_BYTES, purpose)

    def score(self, stored: StoredBlocks, folded: FoldedQuery) -> NDArray[np.int32]:
        """Score key blocks that lie in device memory, each with its header behind it.

        More heads than the design's query group take several jobs over the same blocks.

        Args:
            stored: at least one block.
            folded: the query, folded over exactly these blocks in this order.

        Returns:
            int32 [blocks · block_tokens, heads].

        Raises:
            ValueError: shapes that disagree, a head_dim of another design, no device memory left.
            JobError, DeviceTimeout, DeviceError: after a retry.

        """
        self._check_job(stored, folded)
        tokens = len(stored) * self.design.block_tokens
        results = [
            self._run_job(stored, folded, heads, 0).view("<i4").reshape(tokens, -1)
            for heads in self._passes(folded)
        ]
        return np.concatenate(results, 1)

    def score_topk(self, stored: StoredBlocks, folded: FoldedQuery, k: int) -> Selection:
        """Score key blocks and bring the highest scores of each head alone.

        More tokens than the kernel selects from take several jobs, whose selections are merged here.

        Args:
            stored: at least one block, in any order; no token may be in two of them.
            folded: the query, folded over exactly these blocks in this order.
            k: scores wanted of each head, 1 to the design's top-k capacity; of fewer tokens come all.

        Raises:
            ValueError: as `score`; k out of range; tokens that are listed twice; a design without top-k.
            JobError, DeviceTimeout, DeviceError: after a retry.

        """
        self._check_job(stored, folded)
        block_tokens, capacity = self.design.block_tokens, self.design.topk_capacity
        if not 1 <= k <= capacity:
            allowed = f"1 to {capacity}" if capacity else "none, since it has no top-k units"
            raise ValueError(f"k is {k}; design {self.design.name} allows: {allowed}")
        order = stored.first_tokens.argsort()
        stored, folded = stored[order], folded[order]
        if (np.diff(stored.first_tokens) < block_tokens).any():
            raise ValueError("blocks have tokens in common; allowed: every token once")
        step = capacity // block_tokens
        parts = []
        for first in range(0, len(stored), step):
            some = slice(first, first + step)
            count = min(k, len(stored[some]) * block_tokens)
            heads = [
                unpack_selection(self._run_job(stored[some], folded[some], h, k), h.stop - h.start, count)
                for h in self._passes(folded)
            ]
            parts.append(beside(heads))
        return merge(parts, k)

    def last_job(self) -> JobCounters:
        """Read the kernel's counters of its last job."""
        return JobCounters(
            self.access.read(reg.CYCLES), self.access.read(reg.TOKENS), self.access.read(reg.STREAMED_BYTES)
        )

    def _check_job(self, stored: StoredBlocks, folded: FoldedQuery) -> None:
        blocks, _, head_dim = folded.codes.shape
        if blocks == 0 or len(stored) != blocks:
            raise ValueError(
                f"{len(stored)} stored blocks for {blocks} folded ones; allowed: as many, at least one"
            )
        self.design.check_head_dim(head_dim)

    def _passes(self, folded: FoldedQuery) -> list[slice]:
        """The heads of each job over the same blocks."""
        heads, group = folded.codes.shape[1], self.design.query_group
        return [slice(first, min(first + group, heads)) for first in range(0, heads, group)]

    def _run_job(self, stored: StoredBlocks, folded: FoldedQuery, heads: slice, k: int) -> Bytes:
        """Run a job, and once more if it fails; returns its results as they lie in memory."""
        blocks, _, head_dim = folded.codes.shape
        count = heads.stop - heads.start
        places = JobPlaces(self.design, blocks, count, head_dim, k)
        arguments = places.arguments(self._scratch.address(places.nbytes), stored)
        image = job_image(arguments[reg.DESCRIPTOR_ADDRESS], stored, folded, heads, self.design.query_bits)
        what = f"job of {blocks} blocks, {count} heads, head_dim {head_dim}"
        if self._abandoned:
            self._reset()
        self._abandoned = True
        try:
            results = self._run(what, arguments, image, places.result_bytes)
        except _REPEATED:
            self._reset()
            self.job_retries += 1
            try:
                results = self._run(what, arguments, image, places.result_bytes)
            except _REPEATED:
                self._reset()
                self._abandoned = False
                raise
        self._abandoned = False
        return results

    def _run(self, what: str, arguments: dict[Register, int], image: Bytes, result_bytes: int) -> Bytes:
        """One attempt at a job; returns its results.

        Writes of registers are posted: one may be lost, and the kernel run with an argument of the job before
        it. What that could spoil and no check of the kernel finds is where, and how much, it writes.
        """
        self.access.write_memory(arguments[reg.DESCRIPTOR_ADDRESS], image)
        for register, value in arguments.items():
            self.access.write(register, value)
        self.access.write(reg.CTRL, reg.CTRL.mask("ap_start"))
        state = self._wait(what)
        self.access.write(reg.ISR, reg.ISR.mask("done"))
        self.access.write(reg.CTRL, reg.CTRL.mask("ap_continue"))
        if state is not reg.JobState.DONE:
            raise self._job_error(what, state)
        results = self.access.read_memory(arguments[reg.RESULT_ADDRESS], result_bytes)
        found, written = crc32c(results), self.access.read(reg.WRITTEN_CRC32C)
        if found != written:
            raise DataError(f"{what}: CRC32C of the results is {found:#x}, the kernel wrote {written:#x}")
        return results

    def _wait(self, what: str) -> reg.JobState:
        """Wait for the job's end, which ap_done tells.

        An interrupt may be lost, or left from an earlier job. So is STATUS, if the start was lost.
        """
        deadline_ps = self.transport.now_ps + self._timeout_ps
        while True:
            expired = False
            try:
                self.transport.wait_interrupt(max(1, deadline_ps - self.transport.now_ps))
            except DeviceTimeout:
                expired = True
            state = self._state()
            if state is not reg.JobState.RUNNING and self.access.read(reg.CTRL) & reg.CTRL.mask("ap_done"):
                return state
            # Interrupts that mean nothing must not keep the deadline away.
            if expired or self.transport.now_ps >= deadline_ps:
                cycles = self.access.read(reg.CYCLES)
                raise DeviceTimeout(
                    f"{what} did not finish within {self._timeout_ps} ps: state {state.name} after"
                    f" {cycles} cycles",
                    state,
                    cycles,
                )

    def _state(self) -> reg.JobState:
        status = self.access.read(reg.STATUS)
        try:
            return reg.JobState(reg.STATUS.unpack(status)["state"])
        except ValueError:  # all ones, when the link is down
            raise DeviceError(
                f"transport {self.transport.name}: STATUS is {status:#x}, no job state"
            ) from None

    def _job_error(self, what: str, state: reg.JobState) -> JobError:
        """Put the sticky error into words."""
        found = self.access.read(reg.ERROR_CODE)
        try:
            code = reg.ErrorCode(found)
        except ValueError:
            raise DeviceError(
                f"{what}: state {state.name}, ERROR_CODE is {found:#x}, no known error"
            ) from None
        address, token = self.access.read(reg.ERROR_ADDRESS), self.access.read(reg.ERROR_TOKEN)
        tokens = self.access.read(reg.ERROR_TOKENS)
        whose = f", tokens {token} to {token + tokens - 1}" if tokens else ""
        return JobError(
            f"{what}: state {state.name}, error {code.name} at address {address:#x}{whose}",
            code,
            address,
            token,
            tokens,
        )

    def _check_identity(self) -> None:
        for register, expected in reg.identity_values(self.design).items():
            found = self.access.read(register)
            if found != expected:
                raise DeviceError(
                    f"transport {self.transport.name}: {register.name} is {found:#x}"
                    f" {register.unpack(found) or ''}; design {self.design.name} has {expected:#x}"
                    f" {register.unpack(expected) or ''}"
                )

    def _reset(self) -> None:
        self.access.write(reg.RESET, reg.RESET.mask("reset"))
        self.access.write(reg.GIER, reg.GIER.mask("enable"))
        self.access.write(reg.IER, reg.IER.mask("done"))
