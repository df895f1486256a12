"""From codes and biases of folded heads to the scorer's two streams."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.fold_codes import folded_head_layout
from nearkv_hdl.attention.fold_config import QUEUED_BLOCKS, fold_lanes
from nearkv_hdl.attention.query_buffer import command_layout, query_layout, query_row_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS
from nearkv_hdl.stream.credit import BUFFER_LATENCY


class FoldOutput(wiring.Component):
    """Puts codes side by side into beats, collects a block's shifts and biases, and queues both.

    Formula: a beat is `lanes` codes in order; a command leaves when a block's last head is done.
    Timing: a command is offered `latency` = 3 cycles after the bias of its block's last head, on empty
    queues; the block's codes from the cycle after it has been taken.
    Stalls: it cannot. Who feeds it starts a head only with `room`, a place for all its codes, which the head
    holds until its last beat has left. The queue takes the codes of QUEUED_BLOCKS blocks, so that one can
    wait while the next is folded, and a block is complete without any beat having left.
    Numerics: none.

    Args:
        design: beats and query group.

    Members:
        room: a head may start in this cycle, announced with `start`.
        start: a head starts.
        i_valid, i_head_end, i_block_end, codes: `fold_lanes` codes; the last of their head; of their block.
        i_done, i_head, i_bias: a head is folded.
        o_block, o_query: as Scorer takes them.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = fold_lanes(design)
        self.heads = QUEUED_BLOCKS * design.query_group
        super().__init__(
            {
                "room": Out(1),
                "start": In(1),
                "i_valid": In(1),
                "i_head_end": In(1),
                "i_block_end": In(1),
                "codes": In(shape_of(design.query_code)).array(self.lanes),
                "i_done": In(1),
                "i_head": In(folded_head_layout(design)),
                "i_bias": In(shape_of(BIAS)),
                "o_block": Out(stream.Signature(command_layout(design))),
                "o_query": Out(stream.Signature(query_layout(design))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from the bias of a block's last head to its command."""
        return 1 + BUFFER_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two groups of codes."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design

        # Codes: a beat fills up from the top, so that the first ones end at the bottom.
        width = design.query_code.width
        beat = Signal(data.ArrayLayout(width * self.lanes, design.lanes // self.lanes), reset_less=True)
        group = Signal(range(design.lanes // self.lanes))
        complete, head_end, block_end = Signal(), Signal(reset_less=True), Signal(reset_less=True)
        m.d.sync += [
            complete.eq(self.i_valid & (group == design.lanes // self.lanes - 1)),
            head_end.eq(self.i_head_end),
            block_end.eq(self.i_block_end),
        ]
        with m.If(self.i_valid):
            m.d.sync += [
                beat.as_value().eq(Cat(beat.as_value(), *self.codes)[width * self.lanes :]),
                group.eq(group + 1),
            ]
        # Blocks whose command has been taken, and not yet all their codes.
        commanded = Signal(range(QUEUED_BLOCKS + 1))
        row = query_row_layout(design)
        depth = self.heads * design.lane_beats_per_token(design.head_dims[-1])
        m.submodules.codes = codes = fifo.SyncFIFOBuffered(width=row.size + 2, depth=depth)
        out_head_end = codes.r_data[row.size]
        m.d.comb += [
            codes.w_data.eq(Cat(beat.as_value(), head_end, block_end)),
            codes.w_en.eq(complete),
            self.o_query.payload.data.as_value().eq(codes.r_data[: row.size]),
            self.o_query.payload.last.eq(codes.r_data[row.size + 1]),
            self.o_query.valid.eq(codes.r_rdy & (commanded != 0)),
            codes.r_en.eq(self.o_query.ready & (commanded != 0)),
        ]

        # Heads that have started and whose codes have not all left.
        heads = Signal(range(self.heads + 1))
        leaves = self.o_query.valid & self.o_query.ready & out_head_end
        m.d.sync += [
            heads.eq(heads + self.start - leaves),
            commanded.eq(
                commanded + (self.o_block.valid & self.o_block.ready) - (leaves & self.o_query.payload.last)
            ),
        ]
        m.d.comb += self.room.eq(heads != self.heads)

        # Commands: shifts and biases move down head by head.
        command = Signal(command_layout(design), reset_less=True)
        send = Signal()
        m.d.sync += send.eq(self.i_done & self.i_head.block_end)
        with m.If(self.i_done):
            for field, newest in (("shift", self.i_head.shift), ("bias", self.i_bias)):
                values = getattr(command, field)
                for h in range(design.query_group - 1):
                    m.d.sync += values[h].eq(values[h + 1])
                m.d.sync += values[design.query_group - 1].eq(newest)
            descriptor = self.i_head.descriptor
            m.d.sync += [
                getattr(command, name).eq(getattr(descriptor, name))
                for name in ("first_token", "head_dim_index", "key_format", "last")
            ]
        # A block's command leaves before its codes, so there are no more commands than blocks. `room` sees to
        # that; here it is a gate as well, so that the streams keep their contract whatever comes in.
        may_command = commanded != QUEUED_BLOCKS
        m.submodules.commands = commands = fifo.SyncFIFOBuffered(
            width=command.shape().size, depth=QUEUED_BLOCKS
        )
        m.d.comb += [
            commands.w_data.eq(command),
            commands.w_en.eq(send),
            self.o_block.payload.eq(commands.r_data),
            self.o_block.valid.eq(commands.r_rdy & may_command),
            commands.r_en.eq(self.o_block.ready & may_command),
        ]
        return m
