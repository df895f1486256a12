"""`WithReset`: a component that a beat of one more stream resets, for runs that break a job off."""

from __future__ import annotations

from amaranth.hdl import Module, ResetInserter, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In


class WithReset(wiring.Component):
    """A component whose reset is a stream: a beat resets it, memories and registers without reset keep.

    Args:
        inner: its signature holds streams and plain outputs only.

    Members, beside the component's:
        i_reset: a beat, whatever it holds, is a cycle of reset, in which no other stream moves.

    """

    def __init__(self, inner: wiring.Component) -> None:
        self.inner = inner
        super().__init__({**inner.signature.members, "i_reset": In(stream.Signature(1))})

    def elaborate(self, _platform: object) -> Module:
        """Wire every stream through, but for the cycles of reset."""
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
