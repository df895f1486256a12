"""Job control: the ap_ctrl_chain handshake, the sticky error, the counters of a job, the interrupt line."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.csr import register_shape
from nearkv_hdl.spec import registers as reg

AMOUNT_BITS = 8  # of what one cycle can add to a counter: a beat has at most 128 bytes
Fault = data.StructLayout(
    {
        "code": 8,  # ErrorCode
        "address": reg.ERROR_ADDRESS.size_bytes * 8,
        "token": reg.ERROR_TOKEN.size_bytes * 8,
        "tokens": reg.ERROR_TOKENS.size_bytes * 8,
    }
)


def tokens_of_block(fault: data.View, block_tokens: int):
    """Field `tokens` of a fault of a block, which follows its code.

    Verilog never evaluates an always block that has constants alone on its right sides.
    """
    return Mux(fault.code != reg.ErrorCode.NONE, block_tokens, 0)


# Registers by how this component meets them.
_READS = (reg.GIER, reg.IER, reg.ISR)
_ERRORS = {  # of what a fault says
    "code": reg.ERROR_CODE,
    "address": reg.ERROR_ADDRESS,
    "token": reg.ERROR_TOKEN,
    "tokens": reg.ERROR_TOKENS,
}
_DRIVES = (reg.CTRL, reg.STATUS, *_ERRORS.values())
_COUNTS = (reg.TOKENS, reg.STREAMED_BYTES, reg.WRITTEN_BYTES, reg.INPUT_STALLS, reg.OUTPUT_STALLS)
AMOUNTS = tuple(f"add_{register.name.lower()}" for register in _COUNTS)  # ports of what a cycle adds


class JobControl(wiring.Component):
    """Starts jobs, ends them, remembers what went wrong.

    Formula: ap_start while no job is in flight starts one: counters to 0, state RUNNING, a pulse on `start`.
    `finish` ends it: ap_done, and state DONE, or FAILED if an error is recorded. The first error since the
    reset is kept; while there is one, a job ends as FAILED by itself and `start` stays low. ap_start while a
    job is in flight is the error START_WHILE_BUSY; the job goes on and will have failed. ap_continue clears
    ap_done, which ap_start does too. ap_ready equals ap_done: arguments are not taken ahead.
    Interrupt: if IER allows it, the end of a job sets ISR; `interrupt` is high while GIER allows it and ISR
    is set, so that the host clears it by the toggle of ISR.
    Timing: latency 1 from the command to `start`, and from `finish` to ap_done and `interrupt`. CYCLES counts
    the cycles from `start` up to and with that of `finish`. An end in the cycle of a command comes after it:
    ap_done stays set in spite of ap_continue, and ap_start was too early.
    Numerics: counters of 64 bits, modulo 2^64; amounts of up to 255 per cycle.
    Reset: all, by RESET too, which also pulses `abort`.

    Members, beside the registers of the table it drives and reads (as RegisterBlock names them):
        start: a job begins, with the arguments as they stand.
        abort: drop what is in flight, whatever it is.
        finish: the job in flight has ended, all its writes acknowledged.
        fault_valid, fault: something went wrong, up to and with the cycle of `finish`.
        add_tokens, add_streamed_bytes, add_written_bytes, add_input_stalls, add_output_stalls: what this
            cycle adds to the counters.
        interrupt: level.

    """

    def __init__(self) -> None:
        members = {
            "ctrl_command": In(register_shape(reg.CTRL)),
            "reset_command": In(register_shape(reg.RESET)),
            "isr_set": Out(register_shape(reg.ISR)),
            "events_set": Out(register_shape(reg.EVENTS)),
            "start": Out(1),
            "abort": Out(1),
            "finish": In(1),
            "fault_valid": In(1),
            "fault": In(Fault),
            "interrupt": Out(1),
            "cycles": Out(unsigned(8 * reg.CYCLES.size_bytes)),
        }
        members |= {register.name.lower(): In(register_shape(register)) for register in _READS}
        members |= {register.name.lower(): Out(register_shape(register)) for register in _DRIVES}
        for register, amount in zip(_COUNTS, AMOUNTS, strict=True):
            members[register.name.lower()] = Out(register_shape(register))
            members[amount] = In(AMOUNT_BITS)
        super().__init__(members)

    @property
    def latency(self) -> int:
        """Cycles from ap_start to `start`, and from `finish` to ap_done."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between a job's end and the next start."""
        return 1

    def elaborate(self, platform):
        m = Module()
        busy = Signal()
        done = Signal()
        failing = Signal()  # a job on a recorded error, which ends at once
        ends = Signal()
        failed = Signal()
        wrong = Signal()  # ap_start came too early
        m.d.comb += [
            ends.eq(busy & (self.finish | failing)),
            failed.eq((self.error_code != reg.ErrorCode.NONE) | self.fault_valid | wrong),
            wrong.eq(self.ctrl_command.ap_start & busy),
            self.abort.eq(self.reset_command.reset),
            self.ctrl.ap_start.eq(busy),
            self.ctrl.ap_done.eq(done),
            self.ctrl.ap_idle.eq(~busy),
            self.ctrl.ap_ready.eq(done),
        ]

        # The handshake.
        m.d.sync += [self.start.eq(0), failing.eq(0)]
        with m.If(self.ctrl_command.ap_continue):
            m.d.sync += done.eq(0)
        with m.If(ends):
            m.d.sync += [
                busy.eq(0),
                done.eq(1),
                self.status.state.eq(failed + reg.JobState.DONE),
            ]
        begins = Signal()
        m.d.comb += begins.eq(self.ctrl_command.ap_start & ~busy)
        with m.If(begins):
            broken = self.error_code != reg.ErrorCode.NONE
            m.d.sync += [
                busy.eq(1),
                done.eq(0),
                self.status.state.eq(reg.JobState.RUNNING),
                self.start.eq(~broken),
                failing.eq(broken),
            ]

        # The first error.
        with m.If(self.error_code == reg.ErrorCode.NONE):
            with m.If(self.fault_valid):
                m.d.sync += [
                    getattr(self, register.name.lower()).eq(self.fault[part])
                    for part, register in _ERRORS.items()
                ]
            with m.Elif(wrong):
                m.d.sync += self.error_code.eq(reg.ErrorCode.START_WHILE_BUSY)

        # Counters of this job.
        running = Signal()
        m.d.comb += running.eq(busy & ~failing)
        counters = [(self.cycles, running)]
        for register, amount in zip(_COUNTS, AMOUNTS, strict=True):
            counters.append((getattr(self, register.name.lower()), getattr(self, amount)))
        m.d.sync += [counter.eq(counter + amount) for counter, amount in counters]

        # Interrupt and events.
        m.d.comb += [
            self.isr_set.done.eq(ends & self.ier.done),
            self.events_set.done.eq(ends & ~failed),
            self.events_set.failed.eq(ends & failed),
            self.interrupt.eq(self.gier.enable & self.isr.done),
        ]

        with m.If(begins | self.abort):
            m.d.sync += [counter.eq(0) for counter, _ in counters]
        with m.If(self.abort):
            m.d.sync += [
                *(signal.eq(0) for signal in (busy, done, self.start, self.status, failing)),
                *(getattr(self, register.name.lower()).eq(0) for register in _ERRORS.values()),
            ]
        return m
