"""The streaming QKᵀ scorer."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.dot_product import DotProduct
from nearkv_hdl.attention.key_planes import KeyPlanes, key_layout
from nearkv_hdl.attention.query_buffer import BANKS, QueryBuffer, command_layout, query_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import SCORE, TOKEN_INDEX
from nearkv_hdl.spec.layout import KeyFormat


def score_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the score stream: one beat per token, one score per query head."""
    return data.StructLayout(
        {
            "token": TOKEN_INDEX.width,
            "scores": data.ArrayLayout(shape_of(SCORE), design.query_group),
            "last": 1,
        }
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
        design: bus, lanes, query group, head dimensions and formats.

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

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._queries = QueryBuffer(design)
        self._planes = KeyPlanes(design)
        self._dots = [DotProduct(design) for _ in range(design.query_group)]
        in_flight = self.pipeline_latency + self.output_queue_latency
        self.output_queue_depth = 1 << in_flight.bit_length()
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
        return self._planes.latency + self._dots[0].latency + 2

    @property
    def output_queue_latency(self) -> int:
        """Cycles from a write into the empty output queue to its valid output."""
        return 2

    @property
    def latency(self) -> int:
        """Cycles from a token's last lane beat to its score on an empty output."""
        return self.pipeline_latency + self.output_queue_latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        m.submodules.queries = queries = self._queries
        m.submodules.planes = planes = self._planes
        wiring.connect(m, wiring.flipped(self.i_block), queries.i_block)
        wiring.connect(m, wiring.flipped(self.i_query), queries.i_query)
        wiring.connect(m, wiring.flipped(self.i_keys), planes.i_keys)
        m.d.comb += [planes.known.eq(queries.known), planes.release.eq(queries.release)]
        for b in range(BANKS):
            m.d.comb += [
                planes.head_dim_index[b].eq(queries.command[b].head_dim_index),
                planes.key_format[b].eq(queries.command[b].key_format),
            ]

        # Issue: walk the block's lane beats, as data and credits allow.
        bank = Signal(1)
        row, sub = Signal(range(planes.rows)), Signal(range(planes.subs))
        chunk, token = Signal(range(queries.chunks)), Signal(range(design.block_tokens))
        credits = Signal(range(self.output_queue_depth + 1), init=self.output_queue_depth)
        issue = self.o_lanes_active
        bank0, bank1 = queries.command
        int4 = Mux(bank, bank1.key_format, bank0.key_format) == KeyFormat.INT4
        head_dim_index = Mux(bank, bank1.head_dim_index, bank0.head_dim_index)
        last_chunks = Array(design.lane_beats_per_token(d) - 1 for d in design.head_dims)
        first_chunk, last_chunk = chunk == 0, chunk == last_chunks[head_dim_index]
        last_sub = sub == planes.subs - 1
        last_of_block = last_chunk & (token == design.block_tokens - 1)
        m.d.comb += [
            issue.eq(
                queries.ready.bit_select(bank, 1)
                & (planes.high_rows[bank] > row)
                & (int4 | (planes.low_rows != 0))
                & (~first_chunk | (credits != 0))
            ),
            planes.read_bank.eq(bank),
            planes.read_row.eq(row),
            planes.read_sub.eq(sub),
            planes.read_int4.eq(int4),
            planes.low_pop.eq(issue & last_sub & ~int4),
            queries.read_bank.eq(bank),
            queries.read_chunk.eq(chunk),
            # At once, not at the release: a block may be shorter than the pipeline.
            queries.used.bit_select(bank, 1).eq(issue & last_of_block),
        ]
        with m.If(issue):
            m.d.sync += [sub.eq(sub + 1), chunk.eq(Mux(last_chunk, 0, chunk + 1))]
            with m.If(last_sub):
                m.d.sync += [sub.eq(0), row.eq(row + 1)]
            with m.If(last_chunk):
                m.d.sync += token.eq(token + 1)
                with m.If(last_of_block):
                    m.d.sync += [token.eq(0), row.eq(0), bank.eq(~bank)]

        # Query rows wait one cycle for the nibble multiplexer.
        assert queries.latency + 1 == planes.latency
        # Validity and the bank travel beside the free-running data path.
        beat, first = issue, first_chunk
        done, at_bank, block_end = issue & last_chunk, bank, last_of_block
        banks = []
        for rank in range(self.pipeline_latency):
            if rank < planes.latency:
                beat = delayed(m, beat, f"beat{rank}")
                first = delayed(m, first, f"first{rank}")
            valid = Signal(name=f"done{rank}")
            m.d.sync += valid.eq(done)
            done = valid
            at_bank = delayed(m, at_bank, f"bank{rank}")
            block_end = delayed(m, block_end, f"block_end{rank}")
            banks.append(at_bank)
        # The bank each of the last ranks works for: before the shift, before the bias, at the queue.
        shift_bank, bias_bank, out_bank = banks[-3:]

        result = Signal(score_layout(design))
        for h, dot in enumerate(self._dots):
            m.submodules[f"dot{h}"] = dot
            m.d.comb += [dot.valid.eq(beat), dot.first.eq(first)]
            for lane in range(design.lanes):
                query_code = delayed(m, queries.query[h][lane], f"query{h}_{lane}")
                m.d.comb += [dot.codes[lane].eq(planes.codes[lane]), dot.query[lane].eq(query_code)]
            shifted = delayed(m, dot.o << Mux(shift_bank, bank1.shift[h], bank0.shift[h]), f"shifted{h}")
            score = delayed(m, shifted + Mux(bias_bank, bank1.bias[h], bank0.bias[h]), f"score{h}")
            m.d.comb += result.scores[h].eq(score)
            with m.If(done & (score != result.scores[h])):
                m.d.sync += self.o_overflow.eq(1)

        token_offset = Signal(range(design.block_tokens))
        m.d.comb += [
            result.token.eq(Mux(out_bank, bank1.first_token, bank0.first_token) + token_offset),
            result.last.eq(Mux(out_bank, bank1.last, bank0.last) & block_end),
            queries.release.bit_select(out_bank, 1).eq(done & block_end),
        ]
        with m.If(done):
            m.d.sync += token_offset.eq(token_offset + 1)

        m.submodules.queue = queue = fifo.SyncFIFOBuffered(
            width=result.shape().size, depth=self.output_queue_depth
        )
        took = self.o_scores.valid & self.o_scores.ready
        m.d.comb += [
            queue.w_data.eq(result),
            queue.w_en.eq(done),
            self.o_scores.payload.eq(queue.r_data),
            self.o_scores.valid.eq(queue.r_rdy),
            queue.r_en.eq(took),
        ]
        m.d.sync += credits.eq(credits + took - (issue & first_chunk))
        with m.If(queries.framing_error | planes.framing_error):
            m.d.sync += self.o_framing_error.eq(1)
        return m
