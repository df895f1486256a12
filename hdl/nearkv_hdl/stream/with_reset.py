"""A component that a beat of one more stream resets."""

from __future__ import annotations

from amaranth.hdl import Module, ResetInserter, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In


class WithReset(wiring.Component):
    """A component whose reset is a stream; for tests that break a job off.

    Formula: a beat of `i_reset`, whatever it holds, is a cycle of reset; memories and registers without reset
    keep what they hold.
    Timing: every other stream passes without delay, and does not move in a cycle of reset.
    Numerics: none.

    Args:
        inner: its signature holds streams and plain outputs only.

    Members, beside the component's:
        i_reset: always ready.

    """

    def __init__(self, inner: wiring.Component) -> None:
        self.inner = inner
        super().__init__({**inner.signature.members, "i_reset": In(stream.Signature(1))})

    def elaborate(self, platform):
        m = Module()
        reset = self.i_reset.valid
        m.submodules.inner = ResetInserter(reset)(self.inner)
        m.d.comb += self.i_reset.ready.eq(1)
        for name, member in self.inner.signature.members.items():
            mine, theirs = getattr(self, name), getattr(self.inner, name)
            if member.is_port:
                m.d.comb += Value.cast(mine).eq(Value.cast(theirs))
                continue
            source, sink = (mine, theirs) if member.flow is In else (theirs, mine)
            m.d.comb += [
                Value.cast(sink.payload).eq(Value.cast(source.payload)),
                sink.valid.eq(source.valid & ~reset),
                source.ready.eq(sink.ready & ~reset),
            ]
        return m
