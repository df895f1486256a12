"""The end of the reduction: merged partials in, attention outputs and global maxima out."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.fp16_divider import Fp16Divider
from nearkv_hdl.pim.partial import MAXIMUM_LANE, MAXIMUM_WORD, TOTAL_LANE, partial_layout
from nearkv_hdl.spec.attention import FP16_BITS, LOGIT, MAXIMUM, SUM, VALUE_EXPONENT
from nearkv_hdl.stream.skid import SkidBuffer


def output_layout(dividers: int) -> data.StructLayout:
    """Payload of the attention output: FP16 elements in order, `last` on a head's final beat."""
    return data.StructLayout({"data": data.ArrayLayout(FP16_BITS, dividers), "last": 1})


class FinalDivision(wiring.Component):
    """Divides o by l once, at the end, and hands out maxima that come alone.

    Formula: output = o · 2^E_V / l, rounded to FP16 nearest even; a header with `last` becomes its maximum's
    integer part on `o_maximum`.
    Timing: `dividers` elements per cycle, so interval = 1 + head_dim / dividers per head; latency from the
    acceptance of a beat's first elements to their output = `latency`.
    Stalls: a pause of `o_output` stops the dividers under their clock enable; a pause of `o_maximum` holds
    only the next header.
    Numerics: correctly rounded, see Fp16Divider. l = 0 (no tokens) gives 0.
    Reset: control and valid bits.

    Args:
        partial_lanes: sums per beat.
        dividers: divisions side by side, a divisor of partial_lanes.

    Members:
        i: merged partials.
        o_output: FP16 outputs, `dividers` a beat.
        o_maximum: integer maxima of phase 1.

    """

    def __init__(self, partial_lanes: int, dividers: int) -> None:
        if dividers < 1 or partial_lanes % dividers:
            raise ValueError(f"dividers is {dividers}; allowed: a divisor of partial_lanes {partial_lanes}")
        self.partial_lanes = partial_lanes
        self.dividers = dividers
        self._dividers = [Fp16Divider() for _ in range(dividers)]
        self._skid = SkidBuffer(output_layout(dividers))
        super().__init__(
            {
                "i": In(stream.Signature(partial_layout(partial_lanes))),
                "o_output": Out(stream.Signature(output_layout(dividers))),
                "o_maximum": Out(stream.Signature(shape_of(MAXIMUM))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from elements to their quotients at `o_output`."""
        return self._dividers[0].latency + self._skid.latency

    def interval(self, partial_beats: int) -> int:
        """Cycles between two heads of that many beats after the header."""
        return 1 + partial_beats * self.partial_lanes // self.dividers

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = self._skid
        wiring.connect(m, skid.o, wiring.flipped(self.o_output))
        enable = Signal()

        # Header: keep l and E_V, or pass a lone maximum on.
        header = data.View(MAXIMUM_WORD, self.i.payload.data[MAXIMUM_LANE].as_unsigned())
        total = Signal(shape_of(SUM), reset_less=True)
        exponent = Signal(shape_of(VALUE_EXPONENT), reset_less=True)
        maximum, pending = Signal(shape_of(MAXIMUM), reset_less=True), Signal()
        m.d.comb += [self.o_maximum.payload.eq(maximum), self.o_maximum.valid.eq(pending)]
        with m.If(self.o_maximum.ready):
            m.d.sync += pending.eq(0)

        # Sums: `dividers` of them a cycle.
        steps = self.partial_lanes // self.dividers
        step = Signal(range(steps))
        enters, is_last = Signal(), Signal()
        with m.FSM():
            with m.State("header"):
                m.d.comb += self.i.ready.eq(~pending)
                with m.If(self.i.valid & self.i.ready):
                    m.d.sync += [
                        total.eq(self.i.payload.data[TOTAL_LANE]),
                        exponent.eq(header.value_exponent),
                    ]
                    with m.If(self.i.payload.last):
                        m.d.sync += [maximum.eq(header.maximum >> LOGIT.fraction_bits), pending.eq(1)]
                    with m.Else():
                        m.next = "sums"
            with m.State("sums"):
                m.d.comb += [
                    enters.eq(self.i.valid & enable),
                    self.i.ready.eq(enable & (step == steps - 1)),
                    is_last.eq(self.i.payload.last & (step == steps - 1)),
                ]
                with m.If(enters):
                    m.d.sync += step.eq(step + 1)
                    with m.If(step == steps - 1):
                        m.d.sync += step.eq(0)
                        with m.If(self.i.payload.last):
                            m.next = "header"
        for index, divider in enumerate(self._dividers):
            m.submodules[f"divider{index}"] = divider
            elements = [self.i.payload.data[s * self.dividers + index] for s in range(steps)]
            with m.Switch(step):
                for s, element in enumerate(elements):
                    with m.Case(s):
                        m.d.comb += divider.numerator.eq(element)
            m.d.comb += [
                divider.enable.eq(enable),
                divider.denominator.eq(total),
                divider.exponent.eq(exponent),
                skid.i.payload.data[index].eq(divider.o),
            ]

        valid, last = enters, is_last
        for rank in range(self._dividers[0].latency):
            next_valid = Signal(name=f"valid{rank}")
            next_last = Signal(name=f"last{rank}", reset_less=True)
            with m.If(enable):
                m.d.sync += [next_valid.eq(valid), next_last.eq(last)]
            valid, last = next_valid, next_last
        m.d.comb += [
            enable.eq(~valid | skid.i.ready),
            skid.i.valid.eq(valid),
            skid.i.payload.last.eq(last),
        ]
        return m
