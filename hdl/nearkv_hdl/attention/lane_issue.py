"""Decides in which cycles the lanes take a beat, and which."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.mac_array import beat_layout
from nearkv_hdl.attention.query_buffer import BANKS
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.scorer_pipeline import ROW_RANKS

_WRITE_RANKS = 1  # of ROW_RANKS: from taking a beat to `row_complete`, in KeyPlanes


class LaneIssue(wiring.Component):
    """Walks the lane beats of every block, token by token, as rows, queries and output places allow.

    Formula: a beat is issued in every cycle in which its row is granted, its block's queries are complete
    and, if it is a token's first, a credit is left. Credits are places in the output queue; a token takes one
    with its first beat and `score_taken` returns it.
    Timing: latency 2 from `row_complete`, 1 from `ready`; interval 1. All three conditions come from
    registers that look one cycle ahead, so that `o_valid` is one gate. What may still be spent in the present
    cycle is taken as spent: of n credits n − 1 are in use at full rate.
    Stalls: any missing condition holds `o_valid` low and the position still.
    Numerics: none.

    Args:
        design: sizes.
        credits: places in the output queue, from 2.

    Members:
        row_complete: one more row of the blocks, in order, can be read from the next cycle on.
        ready: per bank, its block's queries are complete.
        head_dim_index, key_format: per bank, of its block.
        score_taken: a score has left the output queue.
        o_valid, o_beat: a lane beat is issued.
        o_row, o_sub: where its codes lie: row of the plane, `lanes` nibbles of the row.
        o_int4: the block has no low plane.
        o_row_end: the beat is the last of its row.

    Raises ValueError if `credits` is below 2.

    """

    def __init__(self, design: DesignConfig, credits: int) -> None:
        if credits < 2:
            raise ValueError(f"credits is {credits}; allowed: from 2")
        self.design = design
        self.credits = credits
        super().__init__(
            {
                "row_complete": In(1),
                "ready": In(BANKS),
                "head_dim_index": In(data.ArrayLayout(2, BANKS)),
                "key_format": In(BANKS),
                "score_taken": In(1),
                "o_valid": Out(1),
                "o_beat": Out(beat_layout(design)),
                "o_row": Out(range(design.plane_rows)),
                "o_sub": Out(range(design.lane_beats_per_plane_beat)),
                "o_int4": Out(1),
                "o_row_end": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `row_complete` to the first beat on the row."""
        return ROW_RANKS - _WRITE_RANKS

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design, issue = self.design, self.o_valid

        # Position: lane beat `sub` of a row, `chunk` of a token, `token` of the block in `bank`.
        bank, token = Signal(1), Signal(range(design.block_tokens))
        row, sub, chunk = Signal.like(self.o_row), Signal.like(self.o_sub), Signal.like(self.o_beat.chunk)
        block_start, first_chunk, last_token = Signal(init=1), Signal(init=1), Signal()
        head_dim_index = Mux(bank, self.head_dim_index[1], self.head_dim_index[0])
        last_chunk = (
            chunk == Array(design.lane_beats_per_token(d) - 1 for d in design.head_dims)[head_dim_index]
        )
        last_sub = sub == design.lane_beats_per_plane_beat - 1
        block_end = last_chunk & last_token
        with m.If(issue):
            m.d.sync += [
                sub.eq(Mux(last_sub, 0, sub + 1)),
                chunk.eq(Mux(last_chunk, 0, chunk + 1)),
                first_chunk.eq(last_chunk),
                block_start.eq(block_end),
                bank.eq(bank ^ block_end),
            ]
            with m.If(last_sub):
                m.d.sync += row.eq(row + 1)
            with m.If(last_chunk):
                m.d.sync += [token.eq(token + 1), last_token.eq(token == design.block_tokens - 2)]
            with m.If(block_end):
                m.d.sync += [token.eq(0), row.eq(0)]

        # Conditions, each one cycle ahead.
        granted, rows_left = Signal(), Signal()
        rows = Signal(range(2 * design.plane_rows + 1))
        grant = rows_left & (~granted | (issue & last_sub))
        m.d.sync += [
            rows.eq(rows + self.row_complete - grant),
            rows_left.eq(self.row_complete | (rows > 1) | ((rows == 1) & ~grant)),
            granted.eq(grant | (granted & ~(issue & last_sub))),
        ]
        queries_ready, other_ready = Signal(), Signal()
        m.d.comb += other_ready.eq(Mux(bank, self.ready[0], self.ready[1]))
        m.d.sync += queries_ready.eq(
            Mux(issue & block_end, other_ready, Mux(bank, self.ready[1], self.ready[0]))
        )
        credits, credit_left = Signal(range(self.credits + 1), init=self.credits), Signal(init=1)
        m.d.sync += [
            credits.eq(credits + self.score_taken - (issue & first_chunk)),
            credit_left.eq(credits > 1),
        ]
        m.d.comb += [
            issue.eq(granted & (~block_start | queries_ready) & (~first_chunk | credit_left)),
            self.o_beat.first.eq(first_chunk),
            self.o_beat.last.eq(last_chunk),
            self.o_beat.block_end.eq(block_end),
            self.o_beat.bank.eq(bank),
            self.o_beat.chunk.eq(chunk),
            self.o_beat.head_dim_index.eq(head_dim_index),
            self.o_row.eq(row),
            self.o_sub.eq(sub),
            self.o_int4.eq(Mux(bank, self.key_format[1], self.key_format[0]) == KeyFormat.INT4),
            self.o_row_end.eq(last_sub),
        ]
        return m
