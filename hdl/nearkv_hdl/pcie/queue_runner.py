"""One job of the kernel, from a submission entry to the outcome, through the kernel's registers."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.pcie.queue_entry import SUBMISSION_ENTRY
from nearkv_hdl.pcie.queue_kernel_port import kernel_access
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.queue_entries import ARGUMENT_FIELDS, SUBMISSION
from nearkv_hdl.spec.register_map import WORD_BYTES

_WORD_BITS = 8 * WORD_BYTES


class KernelRunner(wiring.Component):
    """Does what a driver does for a job, in hardware.

    Formula: interrupt enables, every argument, ap_start; then the interrupt; then state and error registers;
    then ISR and ap_continue, so that the counters stay for the host to read, or RESET if the job has failed,
    so that the next one runs. `abort` ends all of that with RESET, at once or after the access under way.
    Timing: one access of KernelPort after the other: a write per 32-bit word of the arguments and 3 more
    before the job; 4 reads after it, then 2 writes, or 1 for a failed one.
    Numerics: a window's lines times 64, modulo 2^64.
    Reset: all; only together with the kernel.

    Members:
        entry: the job, stable while `busy`.
        start: begin; only while not busy.
        abort: level: the job is not wanted any more. It may come at any time until `done`.
        busy: a job is being run.
        done: pulse: the kernel waits for the next job; of an aborted one something may be left on its bus.
        fault: of the job, until the next start; code NONE for one that has finished.
        interrupt: of the kernel.
        kernel: its registers.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "entry": In(SUBMISSION_ENTRY),
                "start": In(1),
                "abort": In(1),
                "busy": Out(1),
                "done": Out(1),
                "fault": Out(Fault),
                "interrupt": In(1),
                "kernel": Out(kernel_access()),
            }
        )

    def _writes(self) -> list[tuple[int, Value]]:
        """Offset and word of every write that begins the job, in order."""
        writes: list[tuple[int, Value]] = [
            (reg.GIER.offset, Const(reg.GIER.mask("enable"))),
            (reg.IER.offset, Const(reg.IER.mask("done"))),
        ]
        for argument, name in ARGUMENT_FIELDS.items():
            value = Value.cast(self.entry[name] * SUBMISSION[name].unit)
            for word in range(argument.words):
                part = value[_WORD_BITS * word : _WORD_BITS * (word + 1)]
                writes.append((argument.offset + WORD_BYTES * word, part))
        return [*writes, (reg.CTRL.offset, Const(reg.CTRL.mask("ap_start")))]

    def elaborate(self, platform):
        m = Module()
        port, fault = self.kernel, self.fault
        request = port.request.payload
        writes = self._writes()
        address = Value.cast(fault.address)
        reads = (
            (reg.ERROR_CODE.offset, Value.cast(fault.code)),
            (reg.ERROR_ADDRESS.offset, address[:_WORD_BITS]),
            (reg.ERROR_ADDRESS.offset + WORD_BYTES, address[_WORD_BITS:]),
            (reg.ERROR_TOKEN.offset, Value.cast(fault.token)),
        )
        acknowledgements = (
            (reg.ISR.offset, reg.ISR.mask("done")),
            (reg.CTRL.offset, reg.CTRL.mask("ap_continue")),
        )
        step = Signal(range(max(len(writes), len(reads), len(acknowledgements))))
        asked = Signal()  # the access of this step is under way
        m.d.comb += self.busy.eq(1)

        def accesses(steps, *, then: str, write: bool = True) -> None:
            """Make the accesses of `steps` one by one, then go on."""
            m.d.comb += [port.request.valid.eq(~asked), request.write.eq(write)]
            with m.Switch(step):
                for number, (offset, word) in enumerate(steps):
                    with m.Case(number):
                        m.d.comb += request.offset.eq(offset)
                        if write:
                            m.d.comb += request.data.eq(word)
                        else:
                            with m.If(port.done):
                                m.d.sync += word.eq(port.read_data)
            with m.If(port.request.valid & port.request.ready):
                m.d.sync += asked.eq(1)
            with m.If(port.done):
                m.d.sync += [asked.eq(0), step.eq(step + 1)]
                with m.If(step == len(steps) - 1):
                    m.d.sync += step.eq(0)
                    m.next = then
                # RESET makes the rest needless; a job is aborted where nothing is half written.
                with m.If(self.abort):
                    m.d.sync += step.eq(0)
                    m.next = "RESET"

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.busy.eq(0)
                with m.If(self.start):
                    m.next = "PROGRAM"
            with m.State("PROGRAM"):
                accesses(writes, then="WAIT")
            with m.State("WAIT"):
                with m.If(self.abort):
                    m.next = "RESET"
                with m.Elif(self.interrupt):
                    m.next = "OUTCOME"
            with m.State("OUTCOME"):
                accesses(reads, then="JUDGE", write=False)
            with m.State("JUDGE"):
                m.next = "ACKNOWLEDGE"
                with m.If((fault.code != reg.ErrorCode.NONE) | self.abort):
                    m.next = "RESET"
            with m.State("ACKNOWLEDGE"):
                accesses(acknowledgements, then="DONE")
            with m.State("RESET"):
                m.d.comb += [
                    port.request.valid.eq(~asked),
                    request.write.eq(1),
                    request.offset.eq(reg.RESET.offset),
                    request.data.eq(reg.RESET.mask("reset")),
                ]
                with m.If(port.request.valid & port.request.ready):
                    m.d.sync += asked.eq(1)
                with m.If(port.done):
                    m.d.sync += asked.eq(0)
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"
        return m
