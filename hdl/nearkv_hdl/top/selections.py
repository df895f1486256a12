"""The highest scores of each query head of a job, as pairs of token and score."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.attention.topk import TopK
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import PAIR_BYTES, PAIRS_PER_LINE
from nearkv_hdl.spec.topk_config import JOB_K_BITS
from nearkv_hdl.top.job_check import HEADS_BITS
from nearkv_hdl.top.score_packer import packed_layout


class Selections(wiring.Component):
    """One TopK per query head, all fed at once, emptied one after the other.

    Formula: for each of the job's heads, in order, the pairs of TopK's selection (token, then score, first
    pair lowest), filled up with zeros to whole lines of PAIRS_PER_LINE pairs.
    A unit per head, since one that serves the heads in turn needs as much memory for the scores of those that
    wait, and takes the cycles of a search for each of them.
    Timing: a token a cycle in; after the last one the time of TopK until the first head's first pair, then a
    pair a cycle, zeros included. `i.ready` waits until every unit has taken its job.
    Numerics: those of TopK, whose window is the whole range.
    Reset: all; it must end what a job has left half done. A job that has ended leaves nothing.

    Args:
        design: with top-k units.

    Members:
        enable: a job is to be taken and run; low between jobs.
        heads, k: of the job, stable.
        i: scores, tokens ascending.
        o: beats; `first_token` is 0, since they belong to no block.

    """

    def __init__(self, design: DesignConfig) -> None:
        assert design.topk is not None
        self.design = design
        self._units = [TopK(design.topk) for _ in range(design.query_group)]
        super().__init__(
            {
                "enable": In(1),
                "heads": In(HEADS_BITS),
                "k": In(JOB_K_BITS),
                "i": In(stream.Signature(score_layout(design))),
                "o": Out(stream.Signature(packed_layout(design.bus_bytes))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config, units = self.design.topk, self._units
        given, ready = Signal(len(units)), Signal(len(units))
        enters = Signal()
        for head, unit in enumerate(units):
            m.submodules[f"unit{head}"] = unit
            in_job = self.heads > head
            job, item = unit.i_job, unit.i
            m.d.comb += [
                job.valid.eq(self.enable & in_job & ~given[head]),
                job.payload.k.eq(self.k),
                # With this shift the window's digit is that of the whole range.
                job.payload.window_base.eq(config.score.min),
                job.payload.window_shift.eq(config.residual_bits),
                ready[head].eq(~in_job | (given[head] & item.ready)),
                item.valid.eq(enters & in_job),
                item.payload.token.eq(self.i.payload.token),
                item.payload.score.eq(self.i.payload.scores[head]),
                item.payload.keep.eq(enters),
                item.payload.last.eq(self.i.payload.last),
                unit.o_status.ready.eq(1),
            ]
            with m.If(~self.enable):
                m.d.sync += given[head].eq(0)
            with m.Elif(job.valid & job.ready):
                m.d.sync += given[head].eq(1)
        m.d.comb += [self.i.ready.eq(self.enable & ready.all()), enters.eq(self.i.valid & self.i.ready)]

        # Pairs of the head whose turn it is, then zeros to the end of its line.
        head = Signal(range(max(len(units), 2)))
        place = Signal(range(PAIRS_PER_LINE))
        fills = Signal()  # the head's items are through
        outputs = [Value.cast(Cat(u.o.payload.token, u.o.payload.score, u.o.payload.last)) for u in units]
        item = Array(outputs)[head]
        has_item = Array(unit.o.valid for unit in units)[head]
        pair, is_last_item = item[: 8 * PAIR_BYTES], item[8 * PAIR_BYTES]
        gives, takes, line_ends, ends = Signal(), Signal(), Signal(), Signal()
        beat_pairs = self.design.bus_bytes // PAIR_BYTES
        beat = Signal(8 * self.design.bus_bytes, reset_less=True)
        level = Signal(range(beat_pairs + 1))
        is_final = Signal()
        m.d.comb += [
            gives.eq(has_item | fills),
            takes.eq(gives & ((level != beat_pairs) | self.o.ready)),
            line_ends.eq(place == PAIRS_PER_LINE - 1),
            ends.eq(takes & line_ends & (fills | is_last_item)),
            self.o.valid.eq(level == beat_pairs),
            self.o.payload.data.eq(beat),
            self.o.payload.last.eq(is_final),
        ]
        for index, unit in enumerate(units):
            m.d.comb += unit.o.ready.eq(takes & ~fills & (head == index))
        with m.If(takes):
            m.d.sync += [
                beat.eq(Cat(beat, Mux(fills, 0, pair))[-len(beat) :]),
                level.eq(Mux(level == beat_pairs, 1, level + 1)),
                place.eq(place + 1),
                is_final.eq(ends & (head + 1 == self.heads)),
            ]
            with m.If(line_ends):
                m.d.sync += fills.eq(0)
                with m.If(fills | is_last_item):
                    m.d.sync += head.eq(Mux(head + 1 == self.heads, 0, head + 1))
            with m.Elif(~fills & is_last_item):
                m.d.sync += fills.eq(1)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += level.eq(0)
        return m
