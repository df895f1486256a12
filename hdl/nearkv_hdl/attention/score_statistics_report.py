"""Sends the score statistics of a job, head after head."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.score_statistics_head import OFFSETS, PARITIES, group_mask
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import SCORE
from nearkv_hdl.spec.score_statistics import GROUP_SUM
from nearkv_hdl.stream.pipeline import PipelineControl


def statistics_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the statistics stream: one beat per query head, `last` on a job's final one."""
    return data.StructLayout(
        {
            "maximum": shape_of(SCORE),
            "upper": shape_of(GROUP_SUM),
            "lower": shape_of(GROUP_SUM),
            "head": range(design.query_group),
            "overflow": 1,
            "last": 1,
        }
    )


def held_layout() -> data.StructLayout:
    """What a head's accumulators hold at the end of a job, with the offset of its L."""
    return data.StructLayout(
        {
            "maximum": data.ArrayLayout(shape_of(SCORE), PARITIES),
            "sum": data.ArrayLayout(GROUP_SUM.width, PARITIES),
            "nonempty": PARITIES,
            "offset": range(OFFSETS),
        }
    )


class StatisticsReport(wiring.Component):
    """Turns what the accumulators hold into statistics, one head per cycle.

    Formula: the parity with the larger maximum is the upper one. The other's sum is `lower` if its group is
    the one below, else 0. A head without tokens reports maximum = −2^31, upper = lower = 0.
    Timing: latency 2 from `start` (selected head, statistics), interval 1. A stalled sink stops it; `held`
    must stand until `done`.
    Numerics: exact.
    Reset: valid bits, the counter of heads.

    Args:
        design: query group.

    Members:
        held: per head, see `held_layout`.
        overflow: goes out with every head.
        start: the first head may be selected in this cycle; `held` is there from now on.
        done: the last beat is taken.
        o: statistics.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._control = PipelineControl(2)
        super().__init__(
            {
                "held": In(held_layout()).array(design.query_group),
                "overflow": In(1),
                "start": In(1),
                "done": Out(1),
                "o": Out(stream.Signature(statistics_layout(design))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `start` to the first beat."""
        return self._control.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return self._control.interval

    def elaborate(self, platform):
        m = Module()
        m.submodules.control = control = self._control
        heads = self.design.query_group

        # Which head enters the pipeline.
        pending = Signal()
        index = Signal(range(heads))
        enters = Signal()
        final = index == heads - 1
        m.d.comb += [
            control.i_valid.eq(self.start | pending),
            enters.eq(control.i_valid & control.i_ready),
            control.o_ready.eq(self.o.ready),
            self.o.valid.eq(control.o_valid),
            self.done.eq(self.o.valid & self.o.ready & self.o.payload.last),
        ]
        with m.If(self.start):
            m.d.sync += pending.eq(1)
        with m.If(enters):
            m.d.sync += index.eq(index + 1)
            with m.If(final):
                m.d.sync += [index.eq(0), pending.eq(0)]

        # The selected head.
        head = Signal(held_layout(), reset_less=True)
        number, last = Signal.like(index, reset_less=True), Signal(reset_less=True)
        with m.If(control.enable):
            m.d.sync += [
                Value.cast(head).eq(Array(Value.cast(held) for held in self.held)[index]),
                number.eq(index),
                last.eq(final),
            ]

        # Its statistics. One group below the upper maximum lie the scores whose group bits are those of the
        # maximum less the lowest group bit. (Offset 0: all groups are even.)
        even, odd = head.maximum
        is_odd, maximum, other, mask = Signal(), Signal(SCORE.width), Signal(SCORE.width), Signal(SCORE.width)
        m.d.comb += [
            is_odd.eq(head.nonempty[1] & (~head.nonempty[0] | (odd > even))),
            maximum.eq(Mux(is_odd, odd, even)),
            other.eq(Mux(is_odd, even, odd)),
            mask.eq(group_mask(head.offset)),
        ]
        one_group = mask & ~(mask << 1)
        is_next = (((maximum - one_group) ^ other) & mask) == 0
        result = Signal(statistics_layout(self.design), reset_less=True)
        with m.If(control.enable):
            m.d.sync += [
                result.maximum.eq(Mux(head.nonempty.any(), maximum, 1 << (SCORE.width - 1))),
                result.upper.eq(Mux(head.nonempty.any(), head.sum[is_odd], 0)),
                result.lower.eq(Mux(head.nonempty.all() & is_next, head.sum[~is_odd], 0)),
                result.head.eq(number),
                result.overflow.eq(self.overflow),
                result.last.eq(last),
            ]
        m.d.comb += self.o.payload.eq(result)
        return m
