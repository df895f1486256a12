"""From exponent and mantissa to a binary16 number."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.exp_unit import power_layout, with_tag
from nearkv_hdl.spec.exp_table import EXP_MANTISSA, FP16
from nearkv_hdl.stream.pipeline import PipelineControl

FRACTION_BITS = 10
EXPONENT_FIELD_BITS = 5
MIN_NORMAL_EXPONENT = -14
MAX_EXPONENT = 15
INFINITY = 0x7C00
DROPPED = EXP_MANTISSA.fraction_bits - FRACTION_BITS


def number_layout(tag_bits: int = 0) -> data.StructLayout:
    """Payload of a number: its bits, and a tag if it has bits."""
    return with_tag({"bits": shape_of(FP16)}, tag_bits)


class ExpToFp16(wiring.Component):
    """Rounds a power of two to IEEE 754 binary16.

    Formula: o = mantissa·2^(exponent − 15) rounded to nearest. A mantissa midway between two numbers goes
    down if it had itself been rounded up, else up, so that nothing is rounded twice.
    Timing: latency 2 (align, round), interval 1; stalls as ExpUnit.
    Cuts: `o.valid` and `o.payload` come from registers; `o.ready` reaches `i.ready` through one gate.
    Numerics: exponent SQ15.0, mantissa UQ1.15 from 1.0. Exponents −14 … 15 give normal numbers with relative
    error <= 2^−11, −25 … −15 subnormal numbers with error <= 2^−25 (2^−25 itself becomes 2^−24), those
    below −25 give 0. What rounds to 2^16, so every number from exponent 16 on, becomes infinity (0x7C00).
    Behind ExpUnit, its error included: .0545 % at degree 3 and .0487 %, the least that any FP16
    result can have, from degree 4; for normal numbers.
    Reset: the valid bits; data registers hold.

    Args:
        tag_bits: width of a tag that travels along; 0 for none.

    Members:
        i: exponent, mantissa, rounded_up, and tag.
        o: bits, and tag.

    Raises ValueError if tag_bits is below 0.

    """

    def __init__(self, *, tag_bits: int = 0) -> None:
        self.tag_bits = tag_bits
        powers, numbers = power_layout(tag_bits), number_layout(tag_bits)
        self._control = PipelineControl(2)
        super().__init__({"i": In(stream.Signature(powers)), "o": Out(stream.Signature(numbers))})

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o` without stalls."""
        return self._control.latency

    @property
    def interval(self) -> int:
        """Cycles between two numbers."""
        return self._control.interval

    @property
    def capacity(self) -> int:
        """Numbers under way at most."""
        return self._control.capacity

    def elaborate(self, platform):
        m = Module()
        m.submodules.control = control = self._control
        m.d.comb += [
            control.i_valid.eq(self.i.valid),
            self.i.ready.eq(control.i_ready),
            self.o.valid.eq(control.o_valid),
            control.o_ready.eq(self.o.ready),
        ]

        # Align: shift subnormal numbers right until their exponent is that of the smallest normal one; a
        # shift by the whole mantissa leaves nothing but "something followed".
        exponent, mantissa = self.i.payload.exponent, self.i.payload.mantissa
        places = Signal(range(EXP_MANTISSA.width + 1))
        with m.If(exponent < MIN_NORMAL_EXPONENT - EXP_MANTISSA.width):
            m.d.comb += places.eq(EXP_MANTISSA.width)
        with m.Elif(exponent < MIN_NORMAL_EXPONENT):
            m.d.comb += places.eq(MIN_NORMAL_EXPONENT - exponent)
        aligned = Signal(2 * EXP_MANTISSA.width)
        m.d.comb += aligned.eq(Cat(Const(0, EXP_MANTISSA.width), mantissa) >> places)

        significand = Signal(FRACTION_BITS + 1, reset_less=True)
        half = Signal(reset_less=True)
        more = Signal(reset_less=True)
        rounded_up = Signal(reset_less=True)
        field = Signal(EXPONENT_FIELD_BITS, reset_less=True)
        infinite = Signal(reset_less=True)
        cut = EXP_MANTISSA.width + DROPPED
        with m.If(control.enable):
            m.d.sync += [
                significand.eq(aligned[cut:]),
                half.eq(aligned[cut - 1]),
                more.eq(aligned[: cut - 1].any()),
                rounded_up.eq(self.i.payload.rounded_up),
                # The significand's leading one adds 1 to the field of a normal number.
                field.eq(Mux(exponent < MIN_NORMAL_EXPONENT, 0, exponent - MIN_NORMAL_EXPONENT)),
                infinite.eq(exponent > MAX_EXPONENT),
            ]

        # Round: a carry out of the significand moves into the field, at the end to infinity.
        bits = Signal(shape_of(FP16), reset_less=True)
        up = half & (more | ~rounded_up)
        with m.If(control.enable):
            m.d.sync += bits.eq(
                Mux(infinite, INFINITY, Cat(Const(0, FRACTION_BITS), field) + significand + up)
            )
        m.d.comb += self.o.payload.bits.eq(bits)

        if self.tag_bits:
            tag = self.i.payload.tag
            for rank in range(self.latency):
                register = Signal(self.tag_bits, name=f"tag{rank}", reset_less=True)
                with m.If(control.enable):
                    m.d.sync += register.eq(tag)
                tag = register
            m.d.comb += self.o.payload.tag.eq(tag)
        return m
