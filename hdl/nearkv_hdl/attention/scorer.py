"""The streaming QKᵀ scorer."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.key_planes import KeyPlanes, key_layout
from nearkv_hdl.attention.lane_issue import LaneIssue
from nearkv_hdl.attention.mac_array import MacArray
from nearkv_hdl.attention.paired_mac_array import PairedMacArray
from nearkv_hdl.attention.query_buffer import BANKS, QueryBuffer, command_layout, query_layout
from nearkv_hdl.attention.score_output import ScoreOutput, score_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.scorer_pipeline import (
    CREDIT_RANKS,
    OUTPUT_QUEUE_RANKS,
    PLANE_RANKS,
    SCALE_RANKS,
    pipeline_ranks,
)


class Scorer(wiring.Component):
    """Scores streamed key blocks against up to eight query heads that share the key stream.

    Formula: scores[h] = bias[h] + (Σ_i q'[h, i]·code[t, i] << shift[h]), with code = 16·high + low nibble
    (INT8) or 16·high nibble (INT4), for the block_tokens tokens of every block, in order.

    Timing: the lanes take one beat (`lanes` channels of one token, all heads) per cycle, head_dim / lanes
    beats a token; `latency` cycles from a token's last lane beat to its score on an empty output. Blocks
    follow each other without a gap as long as sources and sink keep up: queries of the next block load
    through `i_query` while the present one streams, and its high plane streams while the lanes work off
    the queued half of the present low plane.
    Stalls: the pipeline itself never stops. A token enters the lanes only with a credit for its place in
    the output queue, so any pause on any port stops the lanes in time and no score is lost. No ready
    depends on a valid.

    Numerics: exact integers; the dot product has format `design.dot`, a score is signed 32 bit. The host
    chooses shift and bias so that scores fit; one that does not raises `o_overflow` and wraps.

    One clock domain (`sync`), one synchronous reset. Data registers have no reset, only control has.

    Args:
        design: bus, lanes, query group, head dimensions, formats and variant of the multipliers.
        primitives: instantiate vendor blocks, which no simulator here knows, instead of their behavioural
            twins: for synthesis.

    Members:
        i_block: one command per key block: first_token, head_dim_index (into design.head_dims), key_format,
            shift and bias per head, last (of the job).
        i_query: folded codes of each block, `lanes` a beat, head by head, chunk by chunk; last on its
            final beat.
        i_keys: plane beats: high plane, then in INT8 the low plane; last on the block's final beat.
        o_scores: token index, one score per head, last on the job's final token.
        o_lanes_active: the lanes take a beat in this cycle.
        o_overflow: a score did not fit 32 bits since reset.
        o_framing_error: a `last` stood in the wrong place since reset; counted lengths win.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self.design = design
        self._queries = QueryBuffer(design)
        self._planes = KeyPlanes(design, primitives=primitives)
        if design.mac_variant is MacVariant.PACKED_KEYS:
            self._array = PairedMacArray(design)
        else:
            self._array = MacArray(design, primitives=primitives)
        # A place for every token under way, so that credits do not lower the rate of one-beat tokens.
        places = self.pipeline_latency + OUTPUT_QUEUE_RANKS + CREDIT_RANKS
        self.output_queue_depth = 1 << (places - 1).bit_length()
        self._issue = LaneIssue(design, self.output_queue_depth)
        self._output = ScoreOutput(design, self.output_queue_depth)
        super().__init__(
            {
                "i_block": In(stream.Signature(command_layout(design))),
                "i_query": In(stream.Signature(query_layout(design))),
                "i_keys": In(stream.Signature(key_layout(design))),
                "o_scores": Out(stream.Signature(score_layout(design))),
                "o_lanes_active": Out(1),
                "o_overflow": Out(1),
                "o_framing_error": Out(1),
            }
        )

    @property
    def pipeline_latency(self) -> int:
        """Cycles from a token's last lane beat to its write into the output queue."""
        return self._planes.latency + self._array.latency + SCALE_RANKS

    @property
    def latency(self) -> int:
        """Cycles from a token's last lane beat to its score on an empty output."""
        return self._planes.latency + self._array.latency + self._output.latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        assert self._planes.latency == PLANE_RANKS
        assert self.pipeline_latency == pipeline_ranks(self.design)
        m = Module()
        m.submodules.queries = queries = self._queries
        m.submodules.planes = planes = self._planes
        m.submodules.issue = issue = self._issue
        m.submodules.array = array = self._array
        m.submodules.output = output = self._output
        wiring.connect(m, wiring.flipped(self.i_block), queries.i_block)
        wiring.connect(m, wiring.flipped(self.i_query), queries.i_query)
        wiring.connect(m, wiring.flipped(self.i_keys), planes.i_keys)
        wiring.connect(m, output.o, wiring.flipped(self.o_scores))

        # What the parts need to know of the block in each bank.
        for b in range(BANKS):
            for part in (planes, issue):
                m.d.comb += [
                    part.head_dim_index[b].eq(queries.command[b].head_dim_index),
                    part.key_format[b].eq(queries.command[b].key_format),
                ]
            m.d.comb += output.command[b].eq(queries.command[b])
        m.d.comb += [
            planes.known.eq(queries.known),
            planes.release.eq(output.release),
            queries.release.eq(output.release),
            issue.ready.eq(queries.ready),
            issue.row_complete.eq(planes.row_complete),
            issue.score_taken.eq(output.score_taken),
        ]

        # A lane beat is issued, its nibbles and queries are read, multiplied, added; the token's sum leaves.
        m.d.comb += [
            self.o_lanes_active.eq(issue.o_valid),
            planes.read_bank.eq(issue.o_beat.bank),
            planes.read_row.eq(issue.o_row),
            planes.read_sub.eq(issue.o_sub),
            planes.read_int4.eq(issue.o_int4),
            planes.low_drop.eq(issue.o_valid & issue.o_row_end & ~issue.o_int4),
            # At once, not at the release: a block may be shorter than the pipeline.
            queries.used.eq((issue.o_valid & issue.o_beat.block_end) << issue.o_beat.bank),
            array.i_valid.eq(issue.o_valid),
            array.i_beat.eq(issue.o_beat),
            queries.read_bank.eq(array.read_bank),
            queries.read_chunk.eq(array.read_chunk),
            output.valid.eq(array.o_valid),
            output.bank.eq(array.o_bank),
            output.block_end.eq(array.o_block_end),
            output.next_bank.eq(array.o_next_bank),
        ]
        m.d.comb += [mine.eq(theirs) for mine, theirs in zip(array.codes, planes.codes, strict=True)]
        m.d.comb += [mine.eq(theirs) for mine, theirs in zip(array.query, queries.query, strict=True)]
        m.d.comb += [mine.eq(theirs) for mine, theirs in zip(output.dot, array.o, strict=True)]

        m.d.comb += self.o_overflow.eq(output.o_overflow)
        with m.If(queries.framing_error | planes.framing_error):
            m.d.sync += self.o_framing_error.eq(1)
        return m
