"""The processing unit: local attention over the key and value rows it is streamed."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.pim.accumulators import Accumulators
from nearkv_hdl.pim.command_sequencer import CommandSequencer
from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.product_path import ProductPath
from nearkv_hdl.pim.result_reader import ResultReader
from nearkv_hdl.pim.score_memory import ScoreMemory
from nearkv_hdl.pim.score_path import ScorePath
from nearkv_hdl.pim.total_sum import TotalSum
from nearkv_hdl.pim.weight_path import WeightPath
from nearkv_hdl.spec.attention import LOGIT, Operation
from nearkv_hdl.spec.pim_design import MIN_BEATS, PimDesign


class ProcessingUnit(wiring.Component):
    """Attention of one query over the rows of a shard, command by command.

    Formula: SCORE: s = rhu(Σ_i rhu(q_i·k_i·2^16, 0) · scale, 24) for every key row, maximum M = max s >> 16.
    ACCUMULATE: with n = s >> 16 and m = 2^(s & 0xFFFF), l += rhu(m·2^11, M−n) and
    o_j += rhu(m·sig_j, M−n+15+E_V−26−ex_j) for every value row. M is the command's (exact merge) or the
    largest seen so far (exponential merge), whereupon older sums are rescaled by rhu(·, ΔM).

    Timing: SCORE and ACCUMULATE take one lane beat (`lanes` numbers of one row) per cycle from first to
    last, an INT8 bus beat every second cycle. A command takes `command_cycles` before its first beat,
    ACCUMULATE `accumulate_cycles`; `latency` cycles after a row's last beat its logit is stored. Results are
    sent beside the next commands; only ACCUMULATE waits until the sums are out.
    Stalls: a pause of `i_rows` leaves a gap in the free-running pipeline; a pause of `o` stops the reader
    alone. No ready depends on a valid.

    Numerics: products exact, one rounding half up each, exact sums in signed 48 bits. Logits Q15.16 saturate
    (`o_saturated`). Error of l at most N·2^−27 and of o at most N·2^(E_V−27) beside the polynomial's; a
    rescaling adds half a last place of 2^−26. Inf, NaN, an INT8 exponent field of 0 or 31, or |v| ≥ 2^E_V
    raise `o_invalid`, a dot product beyond 48 bits `o_overflow`; results are then undefined.
    Reset: control; data registers and memories have none.

    Args:
        design: lanes, head_dim, block_tokens, partial_lanes, degree.

    Members:
        i_command: commands, see commands.py.
        i_rows: rows of the query, keys and values, `beats` lane beats each; `last` on a command's final
            beat.
        o: partials and lone maxima.
        o_lanes_active: the lanes take a beat in this cycle.
        o_saturated, o_invalid, o_overflow: as above, since reset.
        o_sequence_error: since reset a logit found its slot full, an ACCUMULATE asked for logits that are
            not there, or a maximum lay below a logit or below the sums' own.
        o_framing_error: since reset a `last` stood in the wrong place; counted lengths win.

    """

    def __init__(self, design: PimDesign) -> None:
        self.design = design
        self._products = ProductPath(design)
        self._scoring = ScorePath(design.lanes)
        self._scores = ScoreMemory(design)
        self._weights = WeightPath(design.block_tokens, design.degree)
        self._sums = Accumulators(design.lanes, design.beats)
        self._total = TotalSum()
        self._reader = ResultReader(design)
        self._sequencer = CommandSequencer(design, self.latency)
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout(design))),
                "i_rows": In(stream.Signature(row_layout(design))),
                "o": Out(stream.Signature(partial_layout(design.partial_lanes))),
                "o_lanes_active": Out(1),
                "o_saturated": Out(1),
                "o_invalid": Out(1),
                "o_overflow": Out(1),
                "o_sequence_error": Out(1),
                "o_framing_error": Out(1),
            }
        )

    @property
    def product_latency(self) -> int:
        """Cycles from a lane beat to its aligned products."""
        return self._products.latency

    @property
    def latency(self) -> int:
        """Cycles from a key row's last lane beat to its logit's write into the memory."""
        return self.product_latency + self._scoring.latency

    @property
    def value_latency(self) -> int:
        """Cycles from a value row's last lane beat until its sums can be read."""
        return self.product_latency + self._sums.latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return self._sequencer.interval

    @property
    def command_cycles(self) -> int:
        """Cycles from a command's acceptance to its first lane beat."""
        return self._sequencer.latency

    @property
    def accumulate_cycles(self) -> int:
        """The same for ACCUMULATE, whose first weight comes from the polynomial."""
        return 1 + self._weights.latency

    @property
    def reader_cycles(self) -> int:
        """Cycles from the write of the last logit or sum to a waiting header at `o`."""
        return self._reader.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.sequencer = sequencer = self._sequencer
        m.submodules.products = products = self._products
        m.submodules.scoring = scoring = self._scoring
        m.submodules.scores = scores = self._scores
        m.submodules.weights = weights = self._weights
        m.submodules.sums = sums = self._sums
        m.submodules.total = total = self._total
        m.submodules.reader = reader = self._reader
        assert self._sums.latency + 1 <= MIN_BEATS <= self.design.beats
        assert self._weights.interval <= MIN_BEATS
        command, tag = sequencer.command, sequencer.tag

        # Commands and rows.
        wiring.connect(m, wiring.flipped(self.i_command), sequencer.i_command)
        m.d.comb += [
            sequencer.rows_valid.eq(self.i_rows.valid),
            sequencer.rows_last.eq(self.i_rows.payload.last),
            self.i_rows.ready.eq(sequencer.rows_ready),
            self.o_lanes_active.eq(tag.query | tag.key | tag.value),
            products.tag.eq(tag),
            products.data.eq(self.i_rows.payload.data),
            products.exponent.eq(self.i_rows.payload.exponent),
            products.int8.eq(sequencer.int8),
            products.upper.eq(sequencer.upper),
            products.weight.eq(weights.weight),
            products.value_exponent.eq(sequencer.value_exponent),
        ]
        for lane, product in enumerate(products.products):
            m.d.comb += [scoring.products[lane].eq(product), sums.terms[lane].eq(product)]
        at_numbers, at_read, at_products = products.at_numbers, products.at_read, products.at_products

        # Keys: logits into their slot.
        slots = [at_products.slot]
        for rank in range(scoring.latency):
            slot = Signal(name=f"slot{rank}", reset_less=True)
            m.d.sync += slot.eq(slots[-1])
            slots.append(slot)
        m.d.comb += [
            scoring.valid.eq(at_products.key),
            scoring.first.eq(at_products.first),
            scoring.final.eq(at_products.final),
            scoring.scale.eq(sequencer.scale),
            scores.write.eq(scoring.score_valid),
            scores.write_slot.eq(slots[-1]),
            scores.write_score.eq(scoring.score),
            scores.clear.eq(sequencer.clear),
            scores.clear_slot.eq(command.slot),
            sequencer.logit_written.eq(scores.write),
            sequencer.logit_slot.eq(scores.write_slot),
            sequencer.maximum.eq(scores.maximum),
            sequencer.count.eq(scores.count),
        ]

        # Values: a weight a row; sums of o by rows, and of l once a token.
        m.d.comb += [
            weights.start.eq(sequencer.block_start),
            weights.tokens.eq(command.tokens),
            weights.first_address.eq(sequencer.first_address),
            weights.maximum.eq(sequencer.block_maximum),
            weights.score.eq(scores.score),
            weights.take.eq(sequencer.take),
            scores.address_slot.eq(command.slot),
            scores.address.eq(weights.address),
            sequencer.weight_valid.eq(weights.weight_valid),
            sums.read_row.eq(Mux(at_read.value, at_read.beat, reader.row)),
            sums.read.eq(at_read.value | reader.advance),
            sums.write.eq(at_products.value),
            sums.row.eq(at_products.beat),
            sums.fresh.eq(at_products.fresh),
            sums.rise.eq(at_products.rise),
            total.weight.eq(products.held_weight),
            total.add.eq(at_numbers.value & at_numbers.first),
            total.fresh.eq(at_numbers.fresh),
            total.rise.eq(at_numbers.rise),
        ]

        # Results.
        wiring.connect(m, reader.o, wiring.flipped(self.o))
        values_under_way = Signal(self.value_latency)
        m.d.sync += values_under_way.eq(Cat(tag.value, values_under_way[:-1]))
        asked = reader.active
        m.d.comb += [
            sequencer.reader_busy.eq(reader.busy),
            sequencer.reader_active.eq(asked),
            reader.request.maximum_only.eq(command.operation == Operation.READ_MAXIMUM),
            reader.request.slot.eq(command.slot),
            reader.request.merge.eq(command.merge),
            reader.request_valid.eq(sequencer.request_valid),
            reader.settled.eq(
                Mux(
                    asked.maximum_only,
                    sequencer.settled.bit_select(asked.slot, 1),
                    ~values_under_way.any(),
                )
            ),
            reader.word.maximum.eq(
                Mux(asked.maximum_only, scores.maximum[asked.slot], sequencer.sum_maximum)
                << LOGIT.fraction_bits
            ),
            reader.word.value_exponent.eq(Mux(asked.maximum_only, 0, sequencer.value_exponent)),
            reader.total.eq(total.total),
            reader.empty.eq(sequencer.empty),
            *(wanted.eq(row) for wanted, row in zip(reader.sums, sums.sums, strict=True)),
        ]

        # What went wrong since reset.
        above = weights.take & weights.weight.above_maximum
        for flag, raised in (
            (self.o_saturated, scoring.score_valid & scoring.saturated),
            (self.o_overflow, scoring.score_valid & scoring.overflow),
            (self.o_invalid, products.invalid),
            (self.o_sequence_error, sequencer.sequence_error | scores.overrun | above),
            (self.o_framing_error, sequencer.framing_error),
        ):
            with m.If(raised):
                m.d.sync += flag.eq(1)
        return m
