"""The scorer behind a serial line, as a demonstrator for boards without a memory that could feed it."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.query_buffer import command_layout
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec import serial_frames as frames
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.register_map import WORD_BYTES
from nearkv_hdl.spec.serial_frames import Request, Status
from nearkv_hdl.top.uart import UartReceiver, UartTransmitter
from nearkv_hdl.top.uart_frames import HEAD, FrameReceiver, FrameSender

DROPPED_BYTES = 4


class UartScorer(wiring.Component):
    """Answers the requests of `spec.serial_frames`.

    Formula: payloads of BLOCK, QUERY and KEYS become beats of the scorer, first byte lowest; scores become
    records of the answer in hand. An answer is kept until the next request, so that a repeated sequence gets
    the same bytes again.
    Timing: two cycles a payload byte, `record_bytes` cycles a score; a line of 10 · divisor cycles a byte is
    slower than both. A request is answered at the latest `timeout` cycles after the scorer last took a beat
    or gave a score, with STALLED if beats are left.
    Numerics: those of Scorer.
    Reset: everything; RESET does the same to the scorer and drops the answer in hand.

    Args:
        design: the scorer's build, with 8-bit queries.
        divisor: cycles per bit of the line.
        timeout: cycles that the next byte of a frame, or a beat, may take.
        primitives: as of Scorer.

    Members:
        rx, tx: the line, as seen from here.
        o_busy: a request is being carried out or answered.

    Raises ValueError for an argument out of range.

    """

    def __init__(self, design: DesignConfig, divisor: int, timeout: int, *, primitives: bool = False) -> None:
        frames.check_design(design)
        self.design = design
        self.timeout = timeout
        self._receiver = UartReceiver(divisor)
        self._transmitter = UartTransmitter(divisor)
        self._frames = FrameReceiver(timeout)
        self._scorer = Scorer(design, primitives=primitives)
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), "o_busy": Out(1)})

    def elaborate(self, platform):
        design = self.design
        m = Module()
        m.submodules.receiver = receiver = self._receiver
        m.submodules.transmitter = transmitter = self._transmitter
        m.submodules.frames = request = self._frames
        m.submodules.sender = sender = FrameSender()
        m.submodules.answer = answer = SyncMemory(8, frames.MAX_PAYLOAD_BYTES, style="block")
        reset_scorer = Signal()
        m.submodules.scorer = ResetInserter(reset_scorer)(self._scorer)
        scorer = self._scorer
        m.d.comb += [receiver.i.eq(self.rx), self.tx.eq(transmitter.o)]
        wiring.connect(m, receiver.o, request.i)
        wiring.connect(m, sender.o, transmitter.i)

        head = Signal(HEAD)
        m.d.comb += head.eq(request.o.payload)
        carried_out = Signal(HEAD)  # the last request that was
        any_carried_out = Signal()
        status = Signal(8)
        collected = Signal(range(frames.MAX_PAYLOAD_BYTES + 1))  # bytes of records in the answer
        silent = Signal(range(self.timeout + 1))
        progress = Signal()
        m.d.sync += silent.eq(Mux(progress, 0, silent + (silent != self.timeout)))

        # Payload bytes are shifted in from above, so that a beat's bytes are the topmost, first byte lowest.
        kinds = {
            Request.BLOCK: (scorer.i_block, frames.command_bytes(design)),
            Request.QUERY: (scorer.i_query, design.lanes),
            Request.QUERY_END: (scorer.i_query, design.lanes),
            Request.KEYS: (scorer.i_keys, design.bus_bytes),
            Request.KEYS_END: (scorer.i_keys, design.bus_bytes),
        }
        widest_bytes = max(nbytes for _, nbytes in kinds.values())
        beat = Signal(8 * widest_bytes, reset_less=True)
        at = Signal(range(frames.MAX_PAYLOAD_BYTES + 1))
        in_beat = Signal(range(widest_bytes + 1))
        beat_bytes = Signal(range(widest_bytes + 1))
        offered = Signal()
        taken = Signal()
        is_end = Signal()
        m.d.comb += request.payload_row.eq(at)
        top = {nbytes: beat[8 * (widest_bytes - nbytes) :] for _, nbytes in kinds.values()}
        block_bits = top[frames.command_bytes(design)][: command_layout(design).size]
        m.d.comb += [
            Value.cast(scorer.i_block.payload).eq(block_bits),
            Value.cast(scorer.i_query.payload.data).eq(top[design.lanes]),
            scorer.i_query.payload.last.eq(is_end),
            Value.cast(scorer.i_keys.payload.data).eq(top[design.bus_bytes]),
            scorer.i_keys.payload.last.eq(is_end),
        ]
        with m.Switch(head.kind):
            for kind, (port, nbytes) in kinds.items():
                with m.Case(kind):
                    m.d.comb += [beat_bytes.eq(nbytes), port.valid.eq(offered), taken.eq(port.ready)]
                    if kind in (Request.QUERY_END, Request.KEYS_END):
                        m.d.comb += is_end.eq(at == head.length)

        # Score records go into the answer a byte a cycle.
        record_bytes = frames.record_bytes(design)
        record = Signal(8 * record_bytes, reset_less=True)
        record_left = Signal(range(record_bytes + 1))
        collecting = Signal()
        has_room = collected <= frames.MAX_PAYLOAD_BYTES - frames.STATUS_BYTES - record_bytes
        m.d.comb += [
            scorer.o_scores.ready.eq(collecting & has_room & (record_left == 0)),
            answer.write_row.eq(collected),
            answer.write_data.eq(record[:8]),
            answer.write_enable.eq(record_left != 0),
        ]
        with m.If(record_left != 0):
            m.d.sync += [
                record.eq(record >> 8),
                record_left.eq(record_left - 1),
                collected.eq(collected + 1),
            ]
        with m.Elif(scorer.o_scores.valid & scorer.o_scores.ready):
            scores = scorer.o_scores.payload
            m.d.comb += progress.eq(1)
            m.d.sync += [
                record.eq(Cat(scores.token, Value.cast(scores.scores))),
                record_left.eq(record_bytes),
            ]

        identity = b"".join(
            value.to_bytes(WORD_BYTES, "little") for value in reg.identity_values(design).values()
        )
        with m.FSM() as fsm:
            m.d.comb += self.o_busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += [at.eq(0), in_beat.eq(0)]
                with m.If(request.o.valid):
                    is_new = (head.kind == Request.RESET) | ~any_carried_out
                    m.next = "SEND"
                    with m.If(is_new | (head.sequence != carried_out.sequence)):
                        m.d.sync += [carried_out.eq(head), any_carried_out.eq(1), collected.eq(0)]
                        m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.comb += progress.eq(1)
                m.d.sync += status.eq(0)
                with m.Switch(head.kind):
                    with m.Case(Request.RESET):
                        m.d.comb += reset_scorer.eq(1)
                        m.next = "SEND"
                    with m.Case(Request.HELLO):
                        m.next = "SEND"
                    with m.Case(Request.POLL):
                        m.next = "DRAIN"
                    with m.Case(*kinds):
                        m.next = "FETCH"
                    with m.Default():
                        m.d.sync += status.eq(Status.REFUSED)
                        m.next = "SEND"
                for kind in Request:
                    wrong = head.length != 0
                    if kind in kinds:
                        wrong = self._is_wrong_length(head.length, kinds[kind][1], kind)
                    with m.If((head.kind == kind) & wrong):
                        m.d.comb += reset_scorer.eq(0)
                        m.d.sync += status.eq(Status.REFUSED)
                        m.next = "SEND"
            with m.State("FETCH"):  # payload_row is at; the byte is there in the next cycle
                m.d.comb += collecting.eq(1)
                m.d.sync += at.eq(at + 1)
                m.next = "SHIFT"
            with m.State("SHIFT"):
                m.d.comb += [collecting.eq(1), progress.eq(1)]
                m.d.sync += [
                    beat.eq(beat >> 8 | request.payload << 8 * (widest_bytes - 1)),
                    in_beat.eq(in_beat + 1),
                ]
                m.next = "FETCH"
                with m.If(in_beat + 1 == beat_bytes):
                    m.next = "OFFER"
            with m.State("OFFER"):
                m.d.comb += [collecting.eq(1), offered.eq(1)]
                with m.If(taken):
                    m.d.comb += progress.eq(1)
                    m.d.sync += in_beat.eq(0)
                    m.next = "FETCH"
                    with m.If(at == head.length):
                        m.next = "DRAIN"
                with m.Elif(silent == self.timeout):
                    m.d.sync += status.eq(Status.STALLED)
                    m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += collecting.eq(1)
                with m.If((record_left == 0) & ~(scorer.o_scores.valid & has_room)):
                    m.d.sync += [
                        status[Status.OVERFLOW.bit_length() - 1].eq(scorer.o_overflow),
                        status[Status.FRAMING.bit_length() - 1].eq(scorer.o_framing_error),
                    ]
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += sender.i.valid.eq(1)
                with m.If(sender.i.ready):
                    m.d.comb += request.o.ready.eq(1)
                    m.next = "IDLE"

        # The answer: a status byte, then records, or for HELLO identity and counter.
        is_hello = (carried_out.kind == Request.HELLO) & ~status[Status.REFUSED.bit_length() - 1]
        constant = Array([Const(0, 8), *(Const(byte, 8) for byte in identity)])
        in_dropped = sender.payload_row - (frames.STATUS_BYTES + len(identity))
        hello_byte = Mux(
            sender.payload_row < frames.STATUS_BYTES + len(identity),
            constant[sender.payload_row[: len(constant).bit_length()]],
            request.dropped.word_select(in_dropped[:2], 8),
        )
        m.d.comb += [
            sender.i.payload.kind.eq(carried_out.kind | frames.ANSWER),
            sender.i.payload.sequence.eq(carried_out.sequence),
            sender.i.payload.length.eq(
                frames.STATUS_BYTES + Mux(is_hello, len(identity) + DROPPED_BYTES, collected)
            ),
            answer.read_row.eq(sender.payload_row - frames.STATUS_BYTES),
            answer.read_enable.eq(1),
            sender.payload.eq(
                Mux(sender.payload_row == 0, status, Mux(is_hello, hello_byte, answer.read_data))
            ),
        ]
        return m

    @staticmethod
    def _is_wrong_length(length, beat_bytes: int, kind: Request):
        """Whether a payload of that length is not made of whole beats."""
        if kind is Request.BLOCK:
            return length != beat_bytes
        return (length == 0) | (length[: (beat_bytes - 1).bit_length()] != 0)
