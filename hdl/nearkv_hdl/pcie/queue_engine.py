"""The pair of queues: fetches jobs from host memory, has the kernel run them, posts completions."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.csr import register_shape
from nearkv_hdl.pcie.controller import SETTINGS, STATE
from nearkv_hdl.pcie.msix import MsixVector
from nearkv_hdl.pcie.queue_entry import COMPLETION_ENTRY, EntryCheck
from nearkv_hdl.pcie.queue_indices import QueueIndices
from nearkv_hdl.pcie.queue_kernel_port import kernel_access
from nearkv_hdl.pcie.queue_memory import QueueMemory
from nearkv_hdl.pcie.queue_runner import KernelRunner
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.queue_entries import (
    COMPLETION_BYTES,
    LINE_BYTES,
    SUBMISSION_BYTES,
    GenericStatus,
    StatusType,
)
from nearkv_hdl.spec.registers import ErrorCode

QUIET_CYCLES = 64
_LINE_BITS = (LINE_BYTES - 1).bit_length()


class QueueEngine(wiring.Component):
    """Serves submissions one by one, in order, as an NVMe controller serves its admin queues.

    Formula: CC.en checks the queues' registers and sets CSTS.rdy. While the submission queue is not empty and
    the completion queue not full, an entry is fetched, checked (EntryCheck), run (KernelRunner), completed:
    16 bytes behind all that the kernel wrote, then the MSI-X message behind them, all by posted writes of
    one port. A failed entry or job gives a completion with its status, and the next entry is served.
    Errors: FatalCause sets CSTS.cfs; the job in flight is still completed, then nothing is fetched any more.
    Clearing CC.en drops the job, whatever state it is in, without a completion but one whose write has begun,
    waits until kernel and queues have nothing on the bus, and returns indices, phase and error to their first
    values; then CSTS.rdy is 0. CC.en set again before that counts from then on.
    Timing: latency 2 from the write of a doorbell to the entry's `arvalid`, 2 from its data to the first
    access of KernelRunner, 4 from that one's last access to the completion's `awvalid`, 2 from its
    response to the message's. One job at a time; entries are not fetched ahead. CSTS.rdy falls when nothing
    of the kernel was seen for QUIET_CYCLES, more than a read takes from its inner queues to the port.
    Numerics: indices modulo the sizes of the queues.
    Reset: all; only together with the bus and the kernel.

    Members:
        <name>: registers of `nearkv_hdl.spec.queue_registers` by their names in lower case.
        msix_enable, msix_function_mask: of the MSI-X capability, from the block.
        kernel, interrupt: the kernel.
        kernel_busy: something of the kernel is on its memory port, or offered there.
        m_axi: queues and messages.

    """

    def __init__(self) -> None:
        self._memory = QueueMemory()
        self._runner = KernelRunner()
        members = {
            "msix_enable": In(1),
            "msix_function_mask": In(1),
            "kernel": Out(kernel_access()),
            "interrupt": In(1),
            "kernel_busy": In(1),
            "m_axi": self._memory.signature.members["m_axi"],
        }
        members |= {register.name.lower(): In(register_shape(register)) for register in SETTINGS}
        members |= {register.name.lower(): Out(register_shape(register)) for register in STATE}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = self._memory
        m.submodules.runner = runner = self._runner
        m.submodules.check = check = EntryCheck()
        m.submodules.vector = vector = MsixVector()
        m.submodules.indices = indices = QueueIndices()
        wiring.connect(m, memory.m_axi, wiring.flipped(self.m_axi))
        wiring.connect(m, runner.kernel, wiring.flipped(self.kernel))

        # The lives of the queues.
        ready, stopping, stops = Signal(), Signal(), Signal()
        cause = Signal(qr.FatalCause)
        m.d.comb += stops.eq(stopping | ~self.cc.en)
        with m.If(ready & stops):
            m.d.sync += stopping.eq(1)
        m.d.comb += [
            self.csts.rdy.eq(ready),
            self.csts.cfs.eq(cause != qr.FatalCause.NONE),
            self.fatal_cause.cause.eq(cause),
            self.sq_head.index.eq(indices.sq_head),
            self.cq_tail.index.eq(indices.cq_tail),
            self.cq_tail.phase.eq(indices.phase),
            self.msix_pending.vector0.eq(vector.pending),
            indices.clear.eq(~ready),
            indices.sq_last.eq(self.aqa.asqs),
            indices.cq_last.eq(self.aqa.acqs),
            indices.sq_tail.eq(self.sq_tail_doorbell.index),
            indices.cq_head.eq(self.cq_head_doorbell.index),
            vector.enable.eq(self.msix_enable),
            vector.function_mask.eq(self.msix_function_mask),
            vector.vector_mask.eq(self.msix_control.mask),
            vector.clear.eq(~ready),
            vector.taken.eq(memory.message_taken),
            # What waits is forgotten one cycle after `ready` falls, and CC.en may be 1 again by then.
            memory.message.eq(vector.send & ready & ~stops),
            memory.message_address.eq(self.msix_address),
            memory.message_data.eq(self.msix_data),
            memory.read_address.eq(Value.cast(self.asq) + indices.sq_head * SUBMISSION_BYTES),
            memory.write_address.eq(Value.cast(self.acq) + indices.cq_tail * COMPLETION_BYTES),
            check.entry.eq(memory.line),
            runner.entry.eq(memory.line),
            runner.interrupt.eq(self.interrupt),
            runner.abort.eq(stops),
        ]
        pages = Cat(value[: (qr.QUEUE_ALIGN_BYTES - 1).bit_length()] for value in (self.asq, self.acq))
        usable = ~pages.any() & (self.aqa.asqs != 0) & (self.aqa.acqs != 0)

        completion = Signal(COMPLETION_ENTRY)
        m.d.comb += memory.write_data.eq(completion)
        with m.FSM():
            with m.State("DISABLED"), m.If(self.cc.en):
                m.next = "READY"
                m.d.sync += ready.eq(1)
                with m.If(~usable):
                    m.d.sync += [ready.eq(0), cause.eq(qr.FatalCause.CONFIGURATION)]
                    m.next = "FATAL"
            with m.State("READY"):
                with m.If(stops):
                    m.next = "STOP"
                with m.Elif((cause != qr.FatalCause.NONE) | (indices.wrong != qr.FatalCause.NONE)):
                    m.next = "FATAL"
                with m.Elif(indices.work & indices.room):
                    m.d.comb += memory.read.eq(1)
                    m.next = "FETCH"
            with m.State("FETCH"), m.If(memory.read_done):
                m.next = "CHECK"
                with m.If(memory.read_failed):
                    m.d.sync += cause.eq(qr.FatalCause.FETCH)
                    m.next = "READY"
            with m.State("CHECK"):
                m.d.comb += indices.fetched.eq(1)
                m.d.sync += [
                    completion.eq(0),
                    completion.command_id.eq(check.entry.command_id),
                    completion.phase.eq(indices.phase),
                    completion.status_type.eq(StatusType.GENERIC),
                    completion.status_code.eq(check.code),
                    completion.token.eq(check.place),
                ]
                with m.If(check.code != GenericStatus.SUCCESS):
                    m.next = "FILL"
                with m.Else():
                    m.d.comb += runner.start.eq(1)
                    m.next = "RUN"
            with m.State("RUN"):
                line = Value.cast(runner.fault.address)[_LINE_BITS:]
                with m.If(runner.done):
                    m.next = "FILL"
                    with m.If(runner.fault.code != ErrorCode.NONE):
                        m.d.sync += [
                            completion.status_type.eq(StatusType.KERNEL),
                            completion.status_code.eq(runner.fault.code),
                            completion.token.eq(runner.fault.token),
                            completion.address_line_low.eq(line),
                            completion.address_line_high.eq(line[32:]),
                        ]
            with m.State("FILL"):
                m.d.sync += completion.sq_head.eq(indices.sq_head)
                m.next = "POST"
                with m.If(stops):
                    m.next = "STOP"
            with m.State("POST"):
                m.d.comb += memory.write.eq(1)
                with m.If(memory.write_done):
                    m.d.comb += [indices.posted.eq(1), vector.event.eq(1)]
                    with m.If(memory.write_failed):
                        m.d.sync += cause.eq(qr.FatalCause.POST)
                    m.next = "READY"
            with m.State("FATAL"), m.If(stops):
                m.next = "STOP"
            with m.State("STOP"):
                quiet = Signal(range(QUIET_CYCLES))
                m.d.sync += quiet.eq(quiet + 1)
                with m.If(~memory.idle | self.kernel_busy):
                    m.d.sync += quiet.eq(0)
                with m.Elif(quiet == QUIET_CYCLES - 1):
                    m.d.sync += [quiet.eq(0), ready.eq(0), stopping.eq(0), cause.eq(qr.FatalCause.NONE)]
                    m.next = "DISABLED"
        # A wrong doorbell is told at once; the first cause stays.
        with m.If(ready & ~stops & (cause == qr.FatalCause.NONE) & (indices.wrong != qr.FatalCause.NONE)):
            m.d.sync += cause.eq(indices.wrong)
        return m
