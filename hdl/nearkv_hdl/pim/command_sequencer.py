"""Carries out a processing unit's commands: when each may begin, and which lane beats it takes."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.pim.accumulators import MAX_RISE, RISE
from nearkv_hdl.pim.commands import command_layout
from nearkv_hdl.pim.product_path import tag_layout
from nearkv_hdl.pim.result_reader import REQUEST
from nearkv_hdl.spec.attention import (
    EMPTY_MAXIMUM,
    LOGIT_SCALE_FRACTION_BITS,
    MAXIMUM,
    VALUE_EXPONENT,
    Merge,
    Operation,
    RowFormat,
)
from nearkv_hdl.spec.pim_design import MIN_BEATS, SLOTS, PimDesign


class CommandSequencer(wiring.Component):
    """State of a unit's two slots and of its sums, command by command.

    Formula: ACCUMULATE's maximum M is the command's (exact merge) or max(slot's, sums' own) (exponential);
    the sums rise by the difference of M from their own maximum before the block's first row.
    Timing: the first lane beat can follow `latency` cycles after a command's acceptance, then one per cycle
    (`interval`), an INT8 bus beat every second cycle. READ ends when the reader takes it.
    Stalls: SCORE with `first` waits until the slot's logits are stored and its maximum is not being sent,
    ACCUMULATE until they are stored and the sums are out, a READ until the reader is free. Neither
    `i_command.ready` nor `rows_ready` depends on its own valid.
    Numerics: the rise saturates at MAX_RISE, beyond which nothing is left of a sum.
    Reset: control; values of a command have none.

    Args:
        design: head_dim, lanes, block_tokens.
        score_latency: cycles from a key row's last lane beat to its logit's write.

    Members:
        i_command: commands.
        command: the one being carried out.
        rows_valid, rows_last, rows_ready: handshake of the row stream.
        tag, int8, upper: of the lane beat taken in this cycle; a tag without kind means none.
        scale, value_exponent: of the query, of the values.
        clear: empty the command's slot.
        logit_written, logit_slot: a logit is being stored.
        maximum, count: per slot, of its logits.
        settled: per slot, none of its logits is under way.
        block_start, first_address, block_maximum: weights of an ACCUMULATE are wanted.
        weight_valid, take: the next weight is there; it is used up.
        sum_maximum, empty: M of the sums; they are all 0.
        reader_busy, reader_active: what the reader is at.
        request_valid: the command is a READ and the reader may begin.
        sequence_error, framing_error: this cycle's command, or `last`, is wrong.

    """

    def __init__(self, design: PimDesign, score_latency: int) -> None:
        self.design = design
        self.score_latency = score_latency
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout(design))),
                "command": Out(command_layout(design)),
                "rows_valid": In(1),
                "rows_last": In(1),
                "rows_ready": Out(1),
                "tag": Out(tag_layout(design.beats)),
                "int8": Out(1),
                "upper": Out(1),
                "scale": Out(LOGIT_SCALE_FRACTION_BITS),
                "value_exponent": Out(shape_of(VALUE_EXPONENT)),
                "clear": Out(1),
                "logit_written": In(1),
                "logit_slot": In(1),
                "maximum": In(data.ArrayLayout(shape_of(MAXIMUM), SLOTS)),
                "count": In(data.ArrayLayout(range(design.block_tokens + 1), SLOTS)),
                "settled": Out(SLOTS),
                "block_start": Out(1),
                "first_address": Out(range(design.block_tokens)),
                "block_maximum": Out(shape_of(MAXIMUM)),
                "weight_valid": In(1),
                "take": Out(1),
                "sum_maximum": Out(shape_of(MAXIMUM)),
                "empty": Out(1),
                "reader_busy": In(1),
                "reader_active": In(REQUEST),
                "request_valid": Out(1),
                "sequence_error": Out(1),
                "framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a command's acceptance to its first lane beat."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        tokens_shape = range(design.block_tokens + 1)
        command = Signal(command_layout(design), reset_less=True)
        tokens_left = Signal(tokens_shape, reset_less=True)
        first_row = Signal(reset_less=True)
        scale = Signal(LOGIT_SCALE_FRACTION_BITS, reset_less=True)
        value_exponent = Signal(shape_of(VALUE_EXPONENT), reset_less=True)
        rise = Signal(RISE.width, reset_less=True)
        empty = Signal(init=1)
        sum_maximum = Signal(shape_of(MAXIMUM), init=EMPTY_MAXIMUM)
        in_flight = [
            Signal(range(2 + self.score_latency // MIN_BEATS), name=f"in_flight{s}") for s in range(SLOTS)
        ]
        read_from = [Signal(tokens_shape, name=f"read_from{s}") for s in range(SLOTS)]
        m.d.comb += [
            self.command.eq(command),
            self.scale.eq(scale),
            self.value_exponent.eq(value_exponent),
            self.empty.eq(empty),
            self.sum_maximum.eq(sum_maximum),
            *(self.settled[slot].eq(count == 0) for slot, count in enumerate(in_flight)),
        ]

        # What a command means for the sums.
        is_query = command.operation == Operation.WRITE_QUERY
        is_key = command.operation == Operation.SCORE
        is_value = command.operation == Operation.ACCUMULATE
        slot_settled, slot_maximum = Signal(), Signal(shape_of(MAXIMUM))
        keeps_maximum = ~empty & ~command.first & (sum_maximum > slot_maximum)
        reads_slot = (
            self.reader_busy & self.reader_active.maximum_only & (self.reader_active.slot == command.slot)
        )
        climb = Signal(MAXIMUM.width + 2)
        m.d.comb += [
            slot_settled.eq(self.settled.bit_select(command.slot, 1)),
            slot_maximum.eq(self.maximum[command.slot]),
            self.block_maximum.eq(
                Mux(
                    command.merge == Merge.EXACT,
                    command.maximum,
                    Mux(keeps_maximum, sum_maximum, slot_maximum),
                )
            ),
            climb.eq(Mux(empty | command.first, 0, self.block_maximum - sum_maximum)),
            self.first_address.eq(Array(read_from)[command.slot]),
        ]
        block_end = self.first_address + command.tokens

        started, row_ends = Signal(), Signal()
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
                            self.clear.eq(started & command.first),
                        ]
                        with m.If(self.clear):
                            m.d.sync += Array(read_from)[command.slot].eq(0)
                    with m.Case(Operation.ACCUMULATE):
                        m.d.comb += [
                            started.eq(slot_settled & (~self.reader_busy | self.reader_active.maximum_only)),
                            self.block_start.eq(started),
                        ]
                        with m.If(started):
                            m.d.sync += [
                                Array(read_from)[command.slot].eq(block_end),
                                empty.eq(empty | command.first),
                                sum_maximum.eq(self.block_maximum),
                                value_exponent.eq(command.value_exponent),
                                rise.eq(Mux(climb > MAX_RISE, MAX_RISE, climb)),
                            ]
                            beyond = block_end > self.count[command.slot]
                            m.d.comb += self.sequence_error.eq(beyond | climb[-1])
                    with m.Default():
                        m.d.comb += self.request_valid.eq(~self.reader_busy)
                        with m.If(~self.reader_busy):
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

        # Lane beats; an INT8 bus beat holds two.
        beat, upper, issue = Signal(range(design.beats)), Signal(), Signal()
        allowed = fsm.ongoing("rows") & (~is_value | self.weight_valid)
        last_beat = beat == design.beats - 1
        final = row_ends & (tokens_left == 1)
        m.d.comb += [
            self.int8.eq((command.row_format == RowFormat.INT8) & ~is_query),
            self.upper.eq(upper),
            issue.eq(allowed & self.rows_valid),
            self.rows_ready.eq(allowed & (~self.int8 | upper)),
            row_ends.eq(issue & last_beat),
            self.take.eq(row_ends & is_value),
            self.framing_error.eq(issue & self.rows_ready & (self.rows_last != final)),
            self.tag.query.eq(issue & is_query),
            self.tag.key.eq(issue & is_key),
            self.tag.value.eq(issue & is_value),
            self.tag.first.eq(beat == 0),
            self.tag.final.eq(last_beat),
            self.tag.slot.eq(command.slot),
            self.tag.beat.eq(beat),
            self.tag.fresh.eq(empty),
            self.tag.rise.eq(Mux(first_row, rise, 0)),
        ]
        with m.If(issue):
            m.d.sync += [beat.eq(Mux(last_beat, 0, beat + 1)), upper.eq(self.int8 & ~upper)]
        for slot, count in enumerate(in_flight):
            enters = row_ends & is_key & (command.slot == slot)
            leaves = self.logit_written & (self.logit_slot == slot)
            m.d.sync += count.eq(count + enters - leaves)
        return m
