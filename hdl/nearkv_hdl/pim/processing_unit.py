"""The processing unit: local attention over the key and value rows it is streamed."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.pim.accumulators import MAX_RISE, RISE, Accumulators
from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.product_path import ProductPath
from nearkv_hdl.pim.result_reader import ResultReader
from nearkv_hdl.pim.score_memory import ScoreMemory
from nearkv_hdl.pim.score_path import ScorePath
from nearkv_hdl.pim.total_sum import TotalSum
from nearkv_hdl.pim.weight_path import WeightPath
from nearkv_hdl.spec.attention import (
    EMPTY_MAXIMUM,
    LOGIT,
    LOGIT_SCALE_FRACTION_BITS,
    MAXIMUM,
    VALUE_EXPONENT,
    Merge,
    Operation,
    RowFormat,
)
from nearkv_hdl.spec.pim_designs import MIN_BEATS, SLOTS, PimDesign


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
        return 1

    @property
    def command_cycles(self) -> int:
        """Cycles from a command's acceptance to its first lane beat."""
        return 2

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
        design = self.design
        m.submodules.products = products = self._products
        m.submodules.scoring = scoring = self._scoring
        m.submodules.scores = scores = self._scores
        m.submodules.weights = weights = self._weights
        m.submodules.sums = sums = self._sums
        m.submodules.total = total = self._total
        m.submodules.reader = reader = self._reader
        assert self._sums.latency + 1 <= MIN_BEATS <= design.beats
        assert self._weights.interval <= MIN_BEATS
        wiring.connect(m, reader.o, wiring.flipped(self.o))

        # State of the two slots and of the sums.
        in_flight = [Signal(range(2 + self.latency // MIN_BEATS), name=f"in_flight{s}") for s in range(SLOTS)]
        read_from = [Signal(range(design.block_tokens + 1), name=f"read_from{s}") for s in range(SLOTS)]
        empty = Signal(init=1)
        sum_maximum = Signal(shape_of(MAXIMUM), init=EMPTY_MAXIMUM)
        value_exponent = Signal(shape_of(VALUE_EXPONENT), reset_less=True)
        scale = Signal(LOGIT_SCALE_FRACTION_BITS, reset_less=True)
        rise = Signal(RISE.width, reset_less=True)
        sequence_error = Signal()

        # Commands.
        command = Signal(command_layout(design), reset_less=True)
        tokens_left = Signal(range(design.block_tokens + 1), reset_less=True)
        slot_settled, slot_maximum = Signal(), Signal(shape_of(MAXIMUM))
        m.d.comb += [
            slot_settled.eq(Array(in_flight)[command.slot] == 0),
            slot_maximum.eq(scores.maximum[command.slot]),
        ]
        is_query = command.operation == Operation.WRITE_QUERY
        is_value = command.operation == Operation.ACCUMULATE
        started, issue, row_ends = Signal(), Signal(), Signal()
        first_row = Signal(reset_less=True)
        reads_slot = reader.busy & reader.active.maximum_only & (reader.active.slot == command.slot)
        keeps_maximum = ~empty & ~command.first & (sum_maximum > slot_maximum)
        maximum = Signal(shape_of(MAXIMUM))
        climb = Signal(MAXIMUM.width + 2)
        m.d.comb += [
            maximum.eq(
                Mux(
                    command.merge == Merge.EXACT,
                    command.maximum,
                    Mux(keeps_maximum, sum_maximum, slot_maximum),
                )
            ),
            climb.eq(Mux(empty | command.first, 0, maximum - sum_maximum)),
            weights.tokens.eq(command.tokens),
            weights.first_address.eq(Array(read_from)[command.slot]),
            weights.maximum.eq(maximum),
            scores.clear_slot.eq(command.slot),
            scores.address_slot.eq(command.slot),
            scores.address.eq(weights.address),
            weights.score.eq(scores.score),
            reader.request.maximum_only.eq(command.operation == Operation.READ_MAXIMUM),
            reader.request.slot.eq(command.slot),
            reader.request.merge.eq(command.merge),
        ]
        with m.FSM() as fsm:
            with m.State("command"):
                m.d.comb += self.i_command.ready.eq(1)
                with m.If(self.i_command.valid):
                    m.d.sync += command.eq(self.i_command.payload)
                    m.next = "begin"
            with m.State("begin"):
                m.d.sync += [tokens_left.eq(command.tokens), first_row.eq(1)]
                with m.Switch(command.operation):
                    with m.Case(Operation.WRITE_QUERY):
                        m.d.comb += started.eq(1)
                        m.d.sync += [tokens_left.eq(1), scale.eq(command.scale)]
                    with m.Case(Operation.SCORE):
                        m.d.comb += [
                            started.eq((slot_settled | ~command.first) & ~reads_slot),
                            scores.clear.eq(started & command.first),
                        ]
                        with m.If(scores.clear):
                            m.d.sync += Array(read_from)[command.slot].eq(0)
                    with m.Case(Operation.ACCUMULATE):
                        m.d.comb += [
                            started.eq(slot_settled & (~reader.busy | reader.active.maximum_only)),
                            weights.start.eq(started),
                        ]
                        with m.If(started):
                            m.d.sync += [
                                Array(read_from)[command.slot].eq(weights.first_address + command.tokens),
                                empty.eq(empty | command.first),
                                sum_maximum.eq(maximum),
                                value_exponent.eq(command.value_exponent),
                                rise.eq(Mux(climb > MAX_RISE, MAX_RISE, climb)),
                            ]
                            beyond = weights.first_address + command.tokens > scores.count[command.slot]
                            m.d.comb += sequence_error.eq(beyond | climb[-1])
                    with m.Default():
                        m.d.comb += reader.request_valid.eq(~reader.busy)
                        with m.If(~reader.busy):
                            m.next = "command"
                with m.If(started):
                    m.next = "rows"
                    with m.If((command.tokens == 0) & ~is_query):
                        m.next = "command"
            with m.State("rows"), m.If(row_ends):
                m.d.sync += [tokens_left.eq(tokens_left - 1), first_row.eq(0)]
                with m.If(is_value):
                    m.d.sync += empty.eq(0)
                with m.If(tokens_left == 1):
                    m.next = "command"

        # Rank 0: take a lane beat; an INT8 bus beat holds two.
        beat = Signal(range(design.beats))
        upper = Signal()
        int8 = (command.row_format == RowFormat.INT8) & ~is_query
        allowed = fsm.ongoing("rows") & (~is_value | weights.weight_valid)
        last_beat = beat == design.beats - 1
        m.d.comb += [
            issue.eq(allowed & self.i_rows.valid),
            self.i_rows.ready.eq(allowed & (~int8 | upper)),
            row_ends.eq(issue & last_beat),
            weights.take.eq(row_ends & is_value),
            self.o_lanes_active.eq(issue),
        ]
        with m.If(issue):
            m.d.sync += [beat.eq(Mux(last_beat, 0, beat + 1)), upper.eq(int8 & ~upper)]
        final = row_ends & (tokens_left == 1)
        with m.If(issue & self.i_rows.ready & (self.i_rows.payload.last != final)):
            m.d.sync += self.o_framing_error.eq(1)

        # Products, and what travels with them.
        tag = self._products.tag
        m.d.comb += [
            tag.query.eq(issue & is_query),
            tag.key.eq(issue & (command.operation == Operation.SCORE)),
            tag.value.eq(issue & is_value),
            tag.first.eq(beat == 0),
            tag.final.eq(last_beat),
            tag.slot.eq(command.slot),
            tag.beat.eq(beat),
            tag.fresh.eq(empty),
            tag.rise.eq(Mux(first_row, rise, 0)),
            products.data.eq(self.i_rows.payload.data),
            products.exponent.eq(self.i_rows.payload.exponent),
            products.int8.eq(int8),
            products.upper.eq(upper),
            products.weight.eq(weights.weight),
            products.value_exponent.eq(value_exponent),
        ]
        at_numbers, at_read, at_products = products.at_numbers, products.at_read, products.at_products
        for lane in range(design.lanes):
            m.d.comb += [
                scoring.products[lane].eq(products.products[lane]),
                sums.terms[lane].eq(products.products[lane]),
            ]
        with m.If(products.invalid):
            m.d.sync += self.o_invalid.eq(1)

        # Keys: logits into their slot.
        arrived_slots = [at_products.slot]
        for rank in range(scoring.latency):
            slot = Signal(name=f"slot{rank}", reset_less=True)
            m.d.sync += slot.eq(arrived_slots[-1])
            arrived_slots.append(slot)
        m.d.comb += [
            scoring.valid.eq(at_products.key),
            scoring.first.eq(at_products.first),
            scoring.final.eq(at_products.final),
            scoring.scale.eq(scale),
            scores.write.eq(scoring.score_valid),
            scores.write_slot.eq(arrived_slots[-1]),
            scores.write_score.eq(scoring.score),
        ]
        for slot in range(SLOTS):
            enters = row_ends & (command.operation == Operation.SCORE) & (command.slot == slot)
            leaves = scores.write & (scores.write_slot == slot)
            m.d.sync += in_flight[slot].eq(in_flight[slot] + enters - leaves)
        with m.If(scoring.score_valid):
            m.d.sync += [
                self.o_saturated.eq(self.o_saturated | scoring.saturated),
                self.o_overflow.eq(self.o_overflow | scoring.overflow),
            ]

        # Values: sums of o by rows, and of l once a token.
        m.d.comb += [
            sums.read_row.eq(Mux(at_read.value, at_read.beat, reader.row)),
            sums.read.eq(at_read.value | reader.advance),
            sums.write.eq(at_products.value),
            sums.row.eq(at_products.beat),
            sums.fresh.eq(at_products.fresh),
            sums.rise.eq(at_products.rise),
        ]
        m.d.comb += [
            total.weight.eq(products.held_weight),
            total.add.eq(at_numbers.value & at_numbers.first),
            total.fresh.eq(at_numbers.fresh),
            total.rise.eq(at_numbers.rise),
        ]

        # Results.
        values_under_way = Signal(self.value_latency)
        m.d.sync += values_under_way.eq(Cat(tag.value, values_under_way[:-1]))
        asked = reader.active
        m.d.comb += [
            reader.settled.eq(
                Mux(asked.maximum_only, Array(in_flight)[asked.slot] == 0, ~values_under_way.any())
            ),
            reader.word.maximum.eq(
                Mux(asked.maximum_only, scores.maximum[asked.slot], sum_maximum) << LOGIT.fraction_bits
            ),
            reader.word.value_exponent.eq(Mux(asked.maximum_only, 0, value_exponent)),
            reader.total.eq(total.total),
            reader.empty.eq(empty),
            *(wanted.eq(row) for wanted, row in zip(reader.sums, sums.sums, strict=True)),
        ]
        with m.If(sequence_error | scores.overrun | (weights.take & weights.weight.above_maximum)):
            m.d.sync += self.o_sequence_error.eq(1)
        return m
