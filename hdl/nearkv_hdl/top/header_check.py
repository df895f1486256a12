"""Judges the headers of a job's blocks."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.crc32c import CRC_BITS, Crc32c
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.spec.block_header import (
    CODE_FORMAT,
    FIRST_STREAM_WORD,
    HEADER_BYTES,
    HEADER_CRC_WORD,
    HEADER_WORDS,
    HIGH_CRC_WORD,
    LAST_STREAM_WORD,
    LOW_CRC_WORD,
    MAGIC,
)
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import TOKEN_INDEX
from nearkv_hdl.spec.layout import LAYOUT_VERSION
from nearkv_hdl.spec.registers import ErrorCode

BLOCKS_AHEAD = 8  # beyond the one whose queries are being loaded
_WORD_BITS = 32
_WORD_BYTES = _WORD_BITS // 8
# Of a block, by its descriptor.
EXPECTED = data.StructLayout(
    {
        "header_address": 64,
        "key_address": 64,
        "key_format": 1,
        "first_token": TOKEN_INDEX.width,
        "generation": 32,
    }
)
# Of a block whose header is good.
PLANE_CRCS = data.StructLayout(
    {
        "key_address": 64,
        "key_format": 1,
        "first_token": TOKEN_INDEX.width,
        "high": CRC_BITS,
        "low": CRC_BITS,
    }
)


class HeaderCheck(wiring.Component):
    """Compares each block's header with what job and descriptor say of the block, and its CRC.

    Formula: word by word, those of `spec.block_header`, of which the words of the stream's identity by their
    CRC32C; beside them CRC32C of all words but the last.
    Errors: HEADER_CRC if that is not the last word, else HEADER_IDENTITY if another word differs, with the
    header's address and the block's tokens. A header whose read failed is judged later than its status
    comes, so that the bus error is what is heard of.
    Timing: a header takes its beats, then 16 cycles and the latency of Crc32c; the next one follows behind.
    A stalled `o` stops `i_data` and `i_expected`.
    Numerics: exact.
    Reset: all; a reset job begins at its first header.

    Args:
        design: bus, tokens of a block.

    Members:
        arguments: of the job, stable out of reset.
        i_expected: what the headers must say, in order.
        i_data: beats of the headers.
        o: CRCs of the planes of good blocks, in order.
        fault: what is wrong with the header at hand, until the reset; otherwise code NONE.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._crc, self._stream_crc = Crc32c(_WORD_BYTES), Crc32c(_WORD_BYTES)
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "i_expected": In(stream.Signature(EXPECTED)),
                "i_data": In(stream.Signature(8 * design.bus_bytes)),
                "o": Out(stream.Signature(PLANE_CRCS)),
                "fault": Out(Fault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = self._crc
        m.submodules.stream_crc = stream_crc = self._stream_crc
        m.submodules.waiting = waiting = fifo.SyncFIFOBuffered(width=EXPECTED.size, depth=BLOCKS_AHEAD)
        m.submodules.judged = judged = fifo.SyncFIFOBuffered(width=PLANE_CRCS.size, depth=BLOCKS_AHEAD)
        job, design = self.arguments, self.design
        expected, good = data.View(EXPECTED, waiting.r_data), data.View(PLANE_CRCS, judged.w_data)
        m.d.comb += [
            waiting.w_en.eq(self.i_expected.valid),
            waiting.w_data.eq(self.i_expected.payload),
            self.i_expected.ready.eq(waiting.w_rdy),
            self.o.valid.eq(judged.r_rdy),
            Value.cast(self.o.payload).eq(judged.r_data),
            judged.r_en.eq(self.o.ready),
        ]

        # What each word must be; those of the stream have a CRC, those of planes are taken as they are.
        wanted = {
            0: Const(MAGIC, _WORD_BITS),
            1: Cat(Const(LAYOUT_VERSION, 16), job.head_dim[:16]),
            5: Const(design.block_tokens | CODE_FORMAT << 16, _WORD_BITS),
            6: expected.first_token,
            7: expected.generation,
        }

        header = Signal(8 * HEADER_BYTES, reset_less=True)
        beats = HEADER_BYTES // design.bus_bytes
        beat = Signal(range(max(beats, 2)))
        place = Signal(range(HEADER_WORDS))
        differs = Signal()
        word = header[:_WORD_BITS]
        of_stream = (place >= FIRST_STREAM_WORD) & (place <= LAST_STREAM_WORD)
        of_planes = (place == HIGH_CRC_WORD) | (place == LOW_CRC_WORD)
        must_be = Array(wanted.get(index, Const(0, _WORD_BITS)) for index in range(HEADER_WORDS))[place]
        m.d.comb += [
            crc.i.payload.data.eq(word),
            crc.i.payload.bytes.eq(_WORD_BYTES),
            crc.i.payload.last.eq(place == HEADER_CRC_WORD - 1),
            stream_crc.i.payload.data.eq(word),
            stream_crc.i.payload.bytes.eq(_WORD_BYTES),
            stream_crc.i.payload.last.eq(place == LAST_STREAM_WORD),
            good.key_address.eq(expected.key_address),
            good.key_format.eq(expected.key_format),
            good.first_token.eq(expected.first_token),
            self.fault.address.eq(expected.header_address),
            self.fault.token.eq(expected.first_token),
            self.fault.tokens.eq(tokens_of_block(self.fault, design.block_tokens)),
        ]
        planes = Signal(2 * CRC_BITS, reset_less=True)
        m.d.comb += Cat(good.high, good.low).eq(planes)
        with m.FSM():
            with m.State("BEATS"):
                m.d.comb += self.i_data.ready.eq(1)
                m.d.sync += [place.eq(0), differs.eq(0)]
                with m.If(self.i_data.valid):
                    m.d.sync += [
                        header.eq(Cat(header, self.i_data.payload)[-len(header) :]),
                        beat.eq(Mux(beat == beats - 1, 0, beat + 1)),
                    ]
                    with m.If(beat == beats - 1):
                        m.next = "WORDS"
            with m.State("WORDS"):
                # Neither CRC ever makes a header wait: the one before has left.
                m.d.comb += [crc.i.valid.eq(waiting.r_rdy), stream_crc.i.valid.eq(waiting.r_rdy & of_stream)]
                with m.If(waiting.r_rdy):
                    m.d.sync += [header.eq(header >> _WORD_BITS), place.eq(place + 1)]
                    with m.If(of_planes):
                        m.d.sync += planes.eq(Cat(planes, word)[-len(planes) :])
                    with m.Elif(~of_stream & (word != must_be)):
                        m.d.sync += differs.eq(1)
                    with m.If(crc.i.payload.last):
                        m.next = "VERDICT"
            with m.State("VERDICT"):
                other_stream = stream_crc.o.payload != job.stream_crc32c
                with m.If(crc.o.valid & (crc.o.payload != word)):
                    m.d.comb += self.fault.code.eq(ErrorCode.HEADER_CRC)
                with m.Elif(crc.o.valid & (differs | other_stream)):
                    m.d.comb += self.fault.code.eq(ErrorCode.HEADER_IDENTITY)
                with m.Elif(crc.o.valid):
                    m.d.comb += judged.w_en.eq(1)
                    with m.If(judged.w_rdy):
                        m.d.comb += [crc.o.ready.eq(1), stream_crc.o.ready.eq(1), waiting.r_en.eq(1)]
                        m.next = "BEATS"
        return m
