"""Writes a job's results, never an address ahead of its data."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_write
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.bus.transfer import TransferCode
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import TOKEN_INDEX
from nearkv_hdl.spec.layout import SCORE_BYTES
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.score_packer import packed_layout

_BURST_BEATS = 16
_CHUNKS = 4  # in the queue
_OUTSTANDING = 16


class ResultWriter(wiring.Component):
    """Collects beats of results into chunks and writes whole ones.

    Formula: a chunk is a burst's beats, or those of a block's scores for one head if they are fewer, so that
    no chunk spans two blocks; the job's last one may be shorter. It is written when its last beat is there: a
    job that stops leaves nothing half written on the bus.
    Errors: SLVERR or DECERR is BUS_ERROR with the address of the burst and the tokens of its block, of a
    selection 0; a write outside the window, which a checked job never asks for, RESULT_ADDRESS.
    Timing: a beat a cycle; a chunk is offered to AxiWriter two cycles after its last beat.
    Numerics: none.
    Reset: as AxiWriter, only together with the bus; `restart` is the job's own.

    Args:
        design: bus and tokens of a block.

    Members:
        arguments: of the job.
        restart: empty, back to the first result. Only while `under_way` and `enable` are 0 and no beat comes.
        enable: chunks may be written.
        i: beats.
        pending: chunks that are whole and not acknowledged.
        under_way: chunks given to AxiWriter and not acknowledged.
        fault: what a chunk met, for a cycle, otherwise code NONE.
        m_axi: AW, W and B.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.chunk_beats = min(_BURST_BEATS, design.block_tokens * SCORE_BYTES // design.bus_bytes)
        self.bus_bytes, self.block_tokens = design.bus_bytes, design.block_tokens
        self._writer = AxiWriter(design.bus_bytes, _BURST_BEATS, _OUTSTANDING)
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "restart": In(1),
                "enable": In(1),
                "i": In(stream.Signature(packed_layout(design.bus_bytes))),
                "pending": Out(range(_CHUNKS + _OUTSTANDING + 1)),
                "under_way": Out(range(_OUTSTANDING + 1)),
                "fault": Out(Fault),
                "m_axi": Out(axi_write(64, design.bus_bytes)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.writer = writer = self._writer
        empty = ResetInserter(self.restart)
        # A chunk's own beats leave before the next one's: one chunk more than may wait whole.
        beats = fifo.SyncFIFOBuffered(width=8 * self.bus_bytes, depth=(_CHUNKS + 1) * self.chunk_beats)
        chunk_layout = data.StructLayout(
            {"first_token": TOKEN_INDEX.width, "beats": range(self.chunk_beats + 1)}
        )
        chunks = fifo.SyncFIFOBuffered(width=chunk_layout.size, depth=_CHUNKS)
        written = fifo.SyncFIFOBuffered(width=TOKEN_INDEX.width, depth=_OUTSTANDING)
        m.submodules.beats, m.submodules.chunks, m.submodules.written = map(empty, (beats, chunks, written))
        wiring.connect(m, writer.m_axi, wiring.flipped(self.m_axi))

        place = Signal(range(max(self.chunk_beats, 2)))
        is_last = (place == self.chunk_beats - 1) | self.i.payload.last
        filled, oldest = data.View(chunk_layout, chunks.w_data), data.View(chunk_layout, chunks.r_data)
        enters, whole = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(beats.w_rdy & chunks.w_rdy),
            enters.eq(self.i.valid & self.i.ready),
            whole.eq(enters & is_last),
            beats.w_en.eq(enters),
            beats.w_data.eq(self.i.payload.data),
            chunks.w_en.eq(whole),
            filled.first_token.eq(self.i.payload.first_token),
            filled.beats.eq(place + 1),
        ]
        with m.If(enters):
            m.d.sync += place.eq(Mux(is_last, 0, place + 1))

        address = Signal(64, reset_less=True)
        asks, ends = Signal(), Signal()
        chunk_bytes = oldest.beats * self.bus_bytes
        status = writer.o_status.payload
        refused = status.code == TransferCode.WINDOW
        m.d.comb += [
            writer.window_base.eq(self.arguments.result_address),
            writer.window_bytes.eq(self.arguments.result_bytes),
            writer.i_command.valid.eq(self.enable & chunks.r_rdy & written.w_rdy),
            writer.i_command.payload.address.eq(address),
            writer.i_command.payload.bytes.eq(chunk_bytes),
            asks.eq(writer.i_command.valid & writer.i_command.ready),
            chunks.r_en.eq(asks),
            written.w_en.eq(asks),
            written.w_data.eq(oldest.first_token),
            writer.i_data.valid.eq(beats.r_rdy),
            writer.i_data.payload.eq(beats.r_data),
            beats.r_en.eq(writer.i_data.ready),
            writer.o_status.ready.eq(1),
            ends.eq(writer.o_status.valid),
            written.r_en.eq(ends),
            self.fault.address.eq(status.address),
            self.fault.token.eq(written.r_data),
            self.fault.tokens.eq(
                Mux(self.arguments.flags.top_k, 0, tokens_of_block(self.fault, self.block_tokens))
            ),
        ]
        with m.If(ends & (status.code != TransferCode.OKAY)):
            m.d.comb += self.fault.code.eq(Mux(refused, ErrorCode.RESULT_ADDRESS, ErrorCode.BUS_ERROR))
        m.d.sync += [
            self.pending.eq(self.pending + whole - ends),
            self.under_way.eq(self.under_way + asks - ends),
        ]
        with m.If(asks):
            m.d.sync += address.eq(address + chunk_bytes)
        with m.If(self.restart):
            m.d.sync += [address.eq(self.arguments.result_address), place.eq(0), self.pending.eq(0)]
        return m
