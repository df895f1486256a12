"""A two-entry buffer that cuts a stream's paths in both directions."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class SkidBuffer(wiring.Component):
    """Passes a stream on through registers, in order, nothing lost, nothing added.

    Formula: o is i, token for token.
    Timing: latency 1, interval 1. A stall of `o` reaches `i` one cycle later; the token that was under way
    meanwhile waits in the second register. After a stall the buffered token leaves first, without a gap.
    Cuts: every path. `o.valid`, `o.payload` and `i.ready` come from registers, `i.ready` through an inverter.
    Numerics: none.
    Reset: only the two valid bits; payload registers keep what they hold.

    Args:
        shape: payload shape.

    Members:
        i: tokens in.
        o: tokens out.

    """

    def __init__(self, shape) -> None:
        self.shape = shape
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o` without stalls."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two tokens."""
        return 1

    @property
    def capacity(self) -> int:
        """Tokens it can hold."""
        return 2

    def elaborate(self, platform):
        m = Module()
        width = len(Value.cast(self.i.payload))
        front = Signal(width, reset_less=True)
        front_valid = Signal()
        back = Signal(width, reset_less=True)
        back_valid = Signal()

        m.d.comb += [
            self.i.ready.eq(~back_valid),
            self.o.valid.eq(front_valid),
            Value.cast(self.o.payload).eq(front),
        ]
        with m.If(~back_valid):
            m.d.sync += back.eq(Value.cast(self.i.payload))
        with m.If(self.o.ready | ~front_valid):
            m.d.sync += [front_valid.eq(back_valid | self.i.valid), back_valid.eq(0)]
            with m.If(back_valid):
                m.d.sync += front.eq(back)
            with m.Else():
                m.d.sync += front.eq(Value.cast(self.i.payload))
        with m.Elif(self.i.valid):
            m.d.sync += back_valid.eq(1)
        return m
