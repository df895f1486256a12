"""Registers and job control of the scoring kernel, with any engine behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nearkv.codec.crc import crc32c
from nearkv.device.top_scores import pack_selection
from nearkv.device.transport import Bytes
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.card.job import JobFault, load_job, raise_first
from nearkv_sim.card.kernel_cycles import reading_cycles, writing_cycles
from nearkv_sim.card.memory import DeviceMemory
from nearkv_sim.card.plane_crc import PlaneCrcs, differing_planes, joined
from nearkv_sim.card.register_file import RegisterFile
from nearkv_sim.card.selection import select
from nearkv_sim.engines import Engine, EngineStalled, ScoreOverflow
from nearkv_sim.hardware.link_pipe import PS_PER_S

_NEVER_PS = 1 << 63  # beyond every time a transport can reach


@dataclass(frozen=True)
class _Job:
    """A job in flight and how it will end."""

    start_ps: int
    finish_ps: int
    fault: JobFault | None = None
    result: Bytes | None = None
    result_address: int = 0  # taken with the other arguments: the host may overwrite them meanwhile
    cycles: int = 0
    tokens: int = 0
    streamed_bytes: int = 0
    streamed_crc32c: int = 0


class Kernel:
    """The kernel behind the register table.

    A job is worked out when it starts, but appears to run: until `cycles / clock_hz` have passed, STATUS says
    RUNNING, the result is not in memory and no interrupt is raised. A job that fails does so at once. Cycles
    are the engine's, those of a selection, and with a memory that takes time what `kernel_cycles` says of
    reading and writing.

    Args:
        design: what the identity registers describe.
        memory: what jobs read and write.
        engine: scores the jobs.
        raise_interrupt: called with the time at which the interrupt line rises.
        read_latency_ps: of the memory behind the kernel's port; None for a memory that takes no time at all,
            which no job of the RTL can beat.

    Attributes:
        device_cycles: clock cycles of all finished jobs.
        jobs: finished jobs, failed ones included.

    """

    def __init__(
        self,
        design: DesignConfig,
        memory: DeviceMemory,
        engine: Engine,
        raise_interrupt: Callable[[int], None],
        read_latency_ps: int | None = None,
    ) -> None:
        self._design = design
        self._memory = memory
        self._engine = engine
        self._raise_interrupt = raise_interrupt
        self._read_latency_ps = read_latency_ps
        self._registers = RegisterFile(design)
        self._plane_crcs = PlaneCrcs()
        self._interrupt = False  # the line's level
        self._job: _Job | None = None
        self.device_cycles = 0
        self.jobs = 0

    def read_word(self, offset: int, at_ps: int) -> int:
        """Value of a register word at that time."""
        self.finish_until(at_ps)
        if self._job is not None:
            elapsed_ps = max(0, at_ps - self._job.start_ps)
            self._registers[reg.CYCLES] = elapsed_ps * self._design.clock_hz // PS_PER_S
        return self._registers.read_word(offset)

    def write_word(self, offset: int, value: int, at_ps: int) -> None:
        """Write a register word at that time, with all that follows from it."""
        self.finish_until(at_ps)
        if offset == reg.CTRL.offset:
            # The bits of CTRL are commands; what it reads is the kernel's state.
            command = reg.CTRL.unpack(value)
            if command["ap_continue"]:
                self._registers[reg.CTRL] &= ~(reg.CTRL.mask("ap_done") | reg.CTRL.mask("ap_ready"))
            if command["ap_start"]:
                self._start(at_ps)
            return
        register = self._registers.write_word(offset, value)
        if register is reg.RESET and reg.RESET.unpack(value)["reset"]:
            self._job = None
            self._registers.reset()
        self._drive_interrupt(at_ps)

    def finish_until(self, at_ps: int) -> None:
        """End the job in flight if its time has come by then."""
        if self._job is not None and self._job.finish_ps <= at_ps:
            job, self._job = self._job, None
            self._finish(job)

    def _start(self, at_ps: int) -> None:
        if self._job is not None:
            self._record(JobFault(reg.ErrorCode.START_WHILE_BUSY))
            return
        self._registers[reg.CTRL] = reg.CTRL.mask("ap_start")
        self._registers[reg.STATUS] = reg.STATUS.pack(state=reg.JobState.RUNNING)
        for counter in reg.COUNTERS:
            self._registers[counter] = 0
        if self._registers[reg.ERROR_CODE] != reg.ErrorCode.NONE:
            self._job = _Job(at_ps, at_ps)
            return
        try:
            self._job = self._run(at_ps)
        except JobFault as fault:
            self._job = _Job(at_ps, at_ps, fault)
        except ScoreOverflow:
            self._job = _Job(at_ps, at_ps, JobFault(reg.ErrorCode.SCORE_OVERFLOW))
        except EngineStalled:
            self._job = _Job(at_ps, _NEVER_PS)

    def _run(self, at_ps: int) -> _Job:
        job, expected = load_job(self._registers, self._memory, self._design)
        crcs = self._plane_crcs.of_blocks(job)
        plane_bytes = self._design.layout(job.head_dim).plane_bytes
        differs, plane = differing_planes(crcs, expected)
        addresses = np.array([address for address, _ in job.sources]) + plane * plane_bytes
        raise_first(
            job.first_tokens, self._design.block_tokens, [(reg.ErrorCode.KEY_CRC, differs, addresses)]
        )
        outcome = self._engine.run(job)
        result = np.ascontiguousarray(outcome.scores, "<i4").reshape(-1).view(np.uint8)
        cycles = outcome.cycles
        if self._design.topk and self._registers[reg.FLAGS]:
            tokens = (job.first_tokens[:, None] + np.arange(self._design.block_tokens)).reshape(-1)
            chosen, more = select(self._design.topk, tokens, outcome.scores, self._registers[reg.K])
            result, cycles = pack_selection(chosen), cycles + more
        if self._read_latency_ps is not None:
            heads = outcome.scores.shape[1]
            cycles += writing_cycles(self._design, len(result)) + reading_cycles(
                self._design, job.head_dim, job.key_formats, heads, self._read_latency_ps
            )
        return _Job(
            start_ps=at_ps,
            finish_ps=at_ps - (-cycles * PS_PER_S // self._design.clock_hz),
            result=result,
            result_address=self._registers[reg.RESULT_ADDRESS],
            cycles=cycles,
            tokens=len(outcome.scores),
            streamed_bytes=sum(len(planes) for planes in job.planes),
            streamed_crc32c=joined(crcs, plane_bytes),
        )

    def _finish(self, job: _Job) -> None:
        """Publish a job's end: memory first, then registers, then the interrupt."""
        registers = self._registers
        if job.fault is not None:
            self._record(job.fault)
        failed = registers[reg.ERROR_CODE] != reg.ErrorCode.NONE
        if job.result is not None and not failed:
            self._memory.write(job.result_address, job.result)
            registers[reg.WRITTEN_BYTES] = len(job.result)
            registers[reg.WRITTEN_CRC32C] = crc32c(job.result)
        registers[reg.CYCLES] = job.cycles
        registers[reg.TOKENS] = job.tokens
        registers[reg.STREAMED_BYTES] = job.streamed_bytes
        registers[reg.STREAMED_CRC32C] = job.streamed_crc32c
        self.device_cycles += job.cycles
        self.jobs += 1
        registers[reg.STATUS] = reg.STATUS.pack(state=reg.JobState.FAILED if failed else reg.JobState.DONE)
        registers[reg.CTRL] = reg.CTRL.pack(ap_done=1, ap_idle=1, ap_ready=1)
        registers[reg.EVENTS] |= reg.EVENTS.mask("failed" if failed else "done")
        if registers[reg.IER] & reg.IER.mask("done"):
            registers[reg.ISR] |= reg.ISR.mask("done")
        self._drive_interrupt(job.finish_ps)

    def _drive_interrupt(self, at_ps: int) -> None:
        """Set the line to GIER and ISR; a message goes out when it rises."""
        before = self._interrupt
        self._interrupt = bool(self._registers[reg.GIER] and self._registers[reg.ISR])
        if self._interrupt and not before:
            self._raise_interrupt(at_ps)

    def _record(self, fault: JobFault) -> None:
        # It is the first: no job runs on an error, so that none can follow.
        self._registers[reg.ERROR_CODE] = fault.code
        self._registers[reg.ERROR_ADDRESS] = fault.address
        self._registers[reg.ERROR_TOKEN] = fault.token
        self._registers[reg.ERROR_TOKENS] = fault.tokens
