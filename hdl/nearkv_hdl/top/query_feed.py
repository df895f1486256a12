"""From queued blocks and the bytes of their folded queries to the scorer's query side."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.query_buffer import command_layout, listed, query_layout
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import query_code_bytes
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.job_check import HEADS_BITS


def queued_block_layout(design: DesignConfig) -> data.StructLayout:
    """A block as it waits for the scorer, with the place of its queries for errors."""
    return data.StructLayout({"command": command_layout(design), "query_address": 64})


class QueryFeed(wiring.Component):
    """Gives the scorer each block's command, then its query codes, zeros for the heads the job does not have.

    Formula: rows of `lanes` codes, cut from beats or gathered from them; in memory a code is one byte, or 16
    bits little-endian for formats above 8 bits, of which the lowest query_bits count.
    Errors: a code outside the symmetric format is QUERY_CODE with the address of the block's queries and its
    first token, said once, with the block's last row: a failed read of these bytes is then known already.
    Timing: a row every 2 cycles if rows are not longer than beats, else one per its beats + 1; rows of zeros
    one per cycle.
    Numerics: exact.
    Reset: all.

    Args:
        design: bus, lanes, query group, format.

    Members:
        heads: of the job, 1 to the query group, stable.
        i_block: blocks.
        i_data: bytes of their queries, block after block, whole beats.
        o_block, o_query: as Scorer takes them.
        fault: code QUERY_CODE for a cycle, otherwise NONE.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        super().__init__(
            {
                "heads": In(HEADS_BITS),
                "i_block": In(stream.Signature(queued_block_layout(design))),
                "i_data": In(stream.Signature(8 * design.bus_bytes)),
                "o_block": Out(stream.Signature(command_layout(design))),
                "o_query": Out(stream.Signature(query_layout(design))),
                "fault": Out(Fault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        design, block = self.design, self.i_block.payload
        code_bits = 8 * query_code_bytes(design.query_bits)
        row_bytes = design.lanes * query_code_bytes(design.query_bits)
        beats_per_row = max(row_bytes // design.bus_bytes, 1)
        rows_per_beat = max(design.bus_bytes // row_bytes, 1)

        held = Signal(8 * max(row_bytes, design.bus_bytes), reset_less=True)
        rows = Signal(range(rows_per_beat + 1))  # held and whole
        gathered = Signal(range(beats_per_row))
        takes_row = Signal()
        m.d.comb += self.i_data.ready.eq(rows == 0)
        with m.If(self.i_data.valid & self.i_data.ready):
            m.d.sync += [held.eq(Cat(held, self.i_data.payload)[-len(held) :]), gathered.eq(gathered + 1)]
            with m.If(gathered == beats_per_row - 1):
                m.d.sync += [gathered.eq(0), rows.eq(rows_per_beat)]
        with m.If(takes_row):
            m.d.sync += [held.eq(held >> 8 * row_bytes), rows.eq(rows - 1)]

        head = Signal(HEADS_BITS)
        chunk = Signal(range(design.lane_beats_per_token(design.head_dims[-1])))
        last_chunks = Array(design.lane_beats_per_token(d) - 1 for d in design.head_dims)
        last_chunk = chunk == last_chunks[listed(design, block.command.head_dim_index)]
        in_job = head < self.heads
        final = last_chunk & (head == design.query_group - 1)
        loading = Signal()
        gives = Signal()
        wrong = Signal(design.lanes)
        was_wrong = Signal()
        limit = design.query_code.max
        for lane in range(design.lanes):
            code = Signal(signed(code_bits), name=f"code{lane}")
            m.d.comb += [
                code.eq(held[code_bits * lane : code_bits * (lane + 1)]),
                wrong[lane].eq((code > limit) | (code < -limit)),
                self.o_query.payload.data[lane].eq(Mux(in_job, code[: design.query_bits], 0)),
            ]
        is_wrong = was_wrong | (takes_row & wrong.any())
        m.d.comb += [
            self.o_block.valid.eq(self.i_block.valid & ~loading),
            self.o_block.payload.eq(block.command),
            self.o_query.valid.eq(loading & (~in_job | (rows != 0))),
            self.o_query.payload.last.eq(final),
            gives.eq(self.o_query.valid & self.o_query.ready),
            takes_row.eq(gives & in_job),
            self.i_block.ready.eq(gives & final),
            self.fault.code.eq(Mux(gives & final & is_wrong, ErrorCode.QUERY_CODE, ErrorCode.NONE)),
            self.fault.address.eq(block.query_address),
            self.fault.token.eq(block.command.first_token),
            self.fault.tokens.eq(tokens_of_block(self.fault, design.block_tokens)),
        ]
        with m.If(self.o_block.valid & self.o_block.ready):
            m.d.sync += loading.eq(1)
        with m.If(gives):
            m.d.sync += [was_wrong.eq(is_wrong & ~final), chunk.eq(chunk + 1)]
            with m.If(last_chunk):
                m.d.sync += [chunk.eq(0), head.eq(head + 1)]
            with m.If(final):
                m.d.sync += [head.eq(0), loading.eq(0)]
        return m
