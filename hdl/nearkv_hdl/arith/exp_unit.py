"""The exp unit: 2^x on a stream, split into an exponent that bypasses and a mantissa that is computed."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.exp_polynomial import Exp2Polynomial
from nearkv_hdl.spec.exp_table import EXP_ARGUMENT, EXP_EXPONENT, EXP_FRACTION, EXP_MANTISSA
from nearkv_hdl.stream.pipeline import PipelineControl


def with_tag(fields: dict, tag_bits: int) -> data.StructLayout:
    """A payload of these fields, and a tag if it has bits."""
    if tag_bits < 0:
        raise ValueError(f"tag_bits is {tag_bits}; allowed: from 0")
    return data.StructLayout({**fields, "tag": tag_bits} if tag_bits else fields)


def argument_layout(tag_bits: int = 0) -> data.StructLayout:
    """Payload of an argument: x, and a tag if it has bits."""
    return with_tag({"x": shape_of(EXP_ARGUMENT)}, tag_bits)


def power_layout(tag_bits: int = 0) -> data.StructLayout:
    """Payload of a power of two: exponent, mantissa and how it was rounded, and a tag if it has bits."""
    fields = {"exponent": shape_of(EXP_EXPONENT), "mantissa": shape_of(EXP_MANTISSA), "rounded_up": 1}
    return with_tag(fields, tag_bits)


class ExpUnit(wiring.Component):
    """2^x = mantissa · 2^exponent, one result per cycle.

    Formula: exponent = floor(x), mantissa = core(x − exponent) ∈ [1, 2).
    Timing: latency that of the core (6 for the default polynomial of degree 3), interval 1. A pause of the
    source travels through as a gap; a pause of the sink stops the pipeline once a result waits at its end.
    Cuts: `o.valid` and `o.payload` come from registers (lookup cores: a register and a multiplexer);
    `o.ready` reaches `i.ready` through one gate. `i.payload` ends in the core's first register or
    multiplier.
    Numerics: x SQ15.16, every value allowed; exponent SQ15.0, −32768 to 32767; mantissa UQ1.15, relative
    error as the core's `accuracy`. Exact at integers; never falls as x rises, since a mantissa is below 2.
    No underflow: a tiny result has a small exponent, and becomes 0 where it is converted (ExpToFp16) or
    shifted out.
    Reset: the valid bits; data registers hold.

    Args:
        core: what computes the mantissa: Exp2Polynomial, Exp2Lookup, Exp2Segments or Exp2ShiftAdd. Default:
            Exp2Polynomial of degree 3.
        tag_bits: width of a tag that travels with the argument; 0 for none.

    Members:
        i: x, and tag.
        o: exponent, mantissa, and tag; `rounded_up` tells ExpToFp16 on which side of the mantissa the
            unrounded value lies.

    Raises ValueError if tag_bits is below 0.

    """

    def __init__(self, core: wiring.Component | None = None, *, tag_bits: int = 0) -> None:
        arguments = argument_layout(tag_bits)
        self.core = Exp2Polynomial() if core is None else core
        self.tag_bits = tag_bits
        self._control = PipelineControl(self.core.latency)
        super().__init__(
            {"i": In(stream.Signature(arguments)), "o": Out(stream.Signature(power_layout(tag_bits)))}
        )

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o` without stalls."""
        return self.core.latency

    @property
    def interval(self) -> int:
        """Cycles between two results."""
        return self.core.interval

    @property
    def capacity(self) -> int:
        """Arguments under way at most."""
        return self._control.capacity

    def elaborate(self, platform):
        m = Module()
        m.submodules.core = core = self.core
        m.submodules.control = control = self._control
        assert self.latency == control.latency
        assert self.interval == control.interval
        m.d.comb += [
            control.i_valid.eq(self.i.valid),
            self.i.ready.eq(control.i_ready),
            self.o.valid.eq(control.o_valid),
            control.o_ready.eq(self.o.ready),
            core.enable.eq(control.enable),
        ]

        argument = self.i.payload
        m.d.comb += [
            core.f.eq(argument.x[: EXP_FRACTION.width]),
            self.o.payload.mantissa.eq(core.m),
            self.o.payload.rounded_up.eq(core.rounded_up),
        ]
        self._delay(m, "exponent", argument.x[EXP_ARGUMENT.fraction_bits :], self.o.payload.exponent)
        if self.tag_bits:
            self._delay(m, "tag", argument.tag, self.o.payload.tag)
        return m

    def _delay(self, m, name: str, value, delayed) -> None:
        """Carry a value past the core."""
        for rank in range(self.latency):
            register = Signal(len(value), name=f"{name}{rank}", reset_less=True)
            with m.If(self._control.enable):
                m.d.sync += register.eq(value)
            value = register
        m.d.comb += delayed.eq(value)
