"""Scores FP16 key rows as they are: no quantisation, scores bit-identical to a processing unit's."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed
from nearkv_hdl.attention.query_buffer import listed
from nearkv_hdl.attention.row_scorer_products import RowProducts, row_beats
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.pim.score_path import ScorePath
from nearkv_hdl.spec.attention import LOGIT_SCALE_FRACTION_BITS, logit_scale
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import TOKEN_INDEX
from nearkv_hdl.stream.credit import CreditBuffer


def row_job_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the job stream: token index of the first row, position of head_dim in design.head_dims.

    A position beyond them counts as the last.
    """
    return data.StructLayout(
        {"first_token": TOKEN_INDEX.width, "head_dim_index": range(max(2, len(design.head_dims)))}
    )


def row_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of query and key stream: FP16 numbers of one row, lowest channel in the lowest bits."""
    return data.StructLayout({"data": 8 * design.bus_bytes, "last": 1})


class RowScorer(wiring.Component):
    """Scores streamed FP16 key rows against the query heads that share them.

    Formula: s[h] = rhu(Σ_c rhu(q[h, c]·k[c]·2^16, 0) · round(2^24·log2(e)/√head_dim), 24), saturated to
    Q15.16: the rule of the processing unit, from the same parts; token = first_token + row number.

    Timing: one bus beat of a key row per cycle (`interval`), so a row takes head_dim·2 / bus_bytes cycles for
    all heads; its scores leave `latency` cycles after its last beat. A job's beat, its queries' beats (head
    by head) and its rows are taken in this order; `job_cycles` from the job to the first key beat if nothing
    waits, or as soon as the rows of the job before have left the pipeline, if that is later.
    Stalls: a pause of a source leaves a gap. A stalled `o` lets as many rows finish as the output buffer
    holds, then stops the last beat of the next row. No ready depends on a valid, no valid on a ready.

    Numerics: products exact, each rounded half up to 2^-16; their sum exact in signed 48 bits; one rounding
    half up to 2^-16. |error| ≤ (head_dim/2·log2(e)/√head_dim + ½)·2^-16, and |Σ|·2^-25 of the rounded scale.
    Reset: control and valid bits; numbers, queries and data registers have none.

    Args:
        design: bus, query group, head dimensions.

    Members:
        i_job: one beat a job.
        i_query: query_group rows; `last` on the final beat, checked.
        i_keys: rows; `last` on the job's final beat.
        o: token index, a Q15.16 score per head, last on the job's final row.
        o_saturated: a score was saturated since reset.
        o_invalid: an Inf or NaN came since reset; scores of its row (key) or job (query) are undefined.
        o_overflow: a sum left 48 bits since reset; its score is undefined.
        o_framing_error: a `last` stood in the wrong place since reset. A row or query is counted to its end;
            `last` within a row counts at the row's end.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._products = RowProducts(design)
        self._paths = [ScorePath(self._products.lanes) for _ in range(design.query_group)]
        self._pipeline_latency = self._products.latency + self._paths[0].latency
        self._buffer = CreditBuffer(score_layout(design), self._pipeline_latency)
        super().__init__(
            {
                "i_job": In(stream.Signature(row_job_layout(design))),
                "i_query": In(stream.Signature(row_layout(design))),
                "i_keys": In(stream.Signature(row_layout(design))),
                "o": Out(stream.Signature(score_layout(design))),
                "o_saturated": Out(1),
                "o_invalid": Out(1),
                "o_overflow": Out(1),
                "o_framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a row's last beat to its scores on an empty output: products, sums, buffer."""
        return self._buffer.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    @property
    def capacity(self) -> int:
        """Rows that can be complete, under way or buffered, while `o` is stalled."""
        return self._buffer.capacity

    def job_cycles(self, head_dim: int) -> int:
        """Cycles from a job's beat to its first key beat: the queries, and one until they can be read."""
        return 1 + self.design.query_group * row_beats(self.design, head_dim) + 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        m.submodules.products = products = self._products
        m.submodules.buffer = buffer = self._buffer

        # A job, its queries, its rows.
        dim_index = Signal.like(self.i_job.payload.head_dim_index, reset_less=True)
        last_beats = Array(row_beats(design, head_dim) - 1 for head_dim in design.head_dims)
        scales = Array(logit_scale(head_dim) for head_dim in design.head_dims)
        scale = Signal(LOGIT_SCALE_FRACTION_BITS, reset_less=True)
        token = Signal(TOKEN_INDEX.width, reset_less=True)
        last_seen = Signal()
        beat, head = Signal(range(products.rows)), Signal(range(design.query_group))
        row_ends, query_ends, takes_query, takes_key = Signal(), Signal(), Signal(), Signal()
        job_ends = Signal()
        ending = Signal(self._pipeline_latency)
        m.d.comb += [
            row_ends.eq(beat == last_beats[dim_index]),
            query_ends.eq(row_ends & (head == design.query_group - 1)),
            takes_query.eq(self.i_query.valid & self.i_query.ready),
            takes_key.eq(self.i_keys.valid & self.i_keys.ready),
            job_ends.eq(takes_key & row_ends & (self.i_keys.payload.last | last_seen)),
        ]
        m.d.sync += ending.eq(Cat(job_ends, ending[:-1]))
        with m.If(takes_query | takes_key):
            m.d.sync += beat.eq(Mux(row_ends, 0, beat + 1))
        with m.If(takes_query & row_ends):
            m.d.sync += head.eq(Mux(query_ends, 0, head + 1))
        with m.If(takes_key):
            m.d.sync += last_seen.eq(~row_ends & (last_seen | self.i_keys.payload.last))
        with m.If(takes_key & row_ends):
            m.d.sync += token.eq(token + 1)
        misplaced = (takes_query & (self.i_query.payload.last != query_ends)) | (
            takes_key & self.i_keys.payload.last & ~row_ends
        )
        running = Signal()
        with m.FSM():
            with m.State("job"):
                m.d.comb += self.i_job.ready.eq(1)
                with m.If(self.i_job.valid):
                    m.d.sync += [
                        token.eq(self.i_job.payload.first_token),
                        dim_index.eq(listed(design, self.i_job.payload.head_dim_index)),
                    ]
                    m.next = "query"
            with m.State("query"):
                m.d.comb += self.i_query.ready.eq(1)
                with m.If(takes_query & query_ends):
                    m.next = "settle"
            # The last query beat is written; the rows of the job before are done with the scale.
            with m.State("settle"), m.If(~ending.any()):
                m.d.sync += scale.eq(scales[dim_index])
                m.next = "rows"
            with m.State("rows"):
                m.d.comb += running.eq(1)
                with m.If(job_ends):
                    m.next = "job"

        # The last beat of a row waits for a place in the buffer.
        m.d.comb += [
            buffer.i_valid.eq(self.i_keys.valid & running & row_ends),
            self.i_keys.ready.eq(running & (~row_ends | buffer.i_ready)),
        ]

        # Products, sums, scores.
        m.d.comb += [
            products.data.eq(Mux(running, self.i_keys.payload.data, self.i_query.payload.data)),
            products.is_query.eq(takes_query),
            products.is_key.eq(takes_key),
            products.head.eq(head),
            products.beat.eq(beat),
        ]
        valid, first, final = takes_key, beat == 0, row_ends
        for rank in range(products.latency):
            now = Signal(name=f"valid{rank}")
            m.d.sync += now.eq(valid)
            valid, first, final = now, delayed(m, first, f"first{rank}"), delayed(m, final, f"final{rank}")
        result = buffer.result
        number, is_last = token, job_ends
        for rank in range(self._pipeline_latency):
            number, is_last = delayed(m, number, f"token{rank}"), delayed(m, is_last, f"last{rank}")
        m.d.comb += [result.token.eq(number), result.last.eq(is_last)]
        for h, path in enumerate(self._paths):
            m.submodules[f"path{h}"] = path
            m.d.comb += [path.products[lane].eq(product) for lane, product in enumerate(products.products[h])]
            m.d.comb += [
                path.valid.eq(valid),
                path.first.eq(first),
                path.final.eq(final),
                path.scale.eq(scale),
                result.scores[h].eq(path.score),
            ]
            for flag, seen in ((self.o_saturated, path.saturated), (self.o_overflow, path.overflow)):
                with m.If(path.score_valid & seen):
                    m.d.sync += flag.eq(1)
        for flag, seen in ((self.o_invalid, products.invalid), (self.o_framing_error, misplaced)):
            with m.If(seen):
                m.d.sync += flag.eq(1)
        wiring.connect(m, buffer.o, wiring.flipped(self.o))
        return m
