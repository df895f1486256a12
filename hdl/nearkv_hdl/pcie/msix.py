"""One MSI-X vector: from an event to the message, or to the pending bit."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class MsixVector(wiring.Component):
    """Remembers that the vector's message is to be written, until it may be.

    The message is a write through the same port as results and completions (PG213 calls that mode "MSI-X
    AXI4-Stream"), so that posted order keeps it behind them; the block's own interrupt interface does not
    promise that.

    Formula: an event while MSI-X is enabled asks for one message; further events before it is written
    ask for no second one. While function or vector is masked, the request waits and the pending bit is set
    (PCI Express Base Specification 5.0, 6.1.4). Disabling MSI-X, and `clear`, drop it.
    Timing: latency 1 from `event` to `send`; interval 1.
    Numerics: none.
    Reset: all.

    Members:
        event: pulse: tell the host.
        clear: forget what waits.
        enable, function_mask: of the capability structure, from the block.
        vector_mask: of the table.
        pending: of the pending bit array.
        send: the message is to be written now.
        taken: it is under way.

    """

    def __init__(self) -> None:
        inputs = ("event", "clear", "enable", "function_mask", "vector_mask", "taken")
        super().__init__({name: In(1) for name in inputs} | {"pending": Out(1), "send": Out(1)})

    def elaborate(self, platform):
        m = Module()
        waits, masked = Signal(), Signal()
        m.d.comb += [
            masked.eq(self.function_mask | self.vector_mask),
            self.pending.eq(waits & masked),
            self.send.eq(waits & ~masked),
        ]
        with m.If(self.taken):
            m.d.sync += waits.eq(0)
        with m.If(self.event):
            m.d.sync += waits.eq(1)
        with m.If(self.clear | ~self.enable):
            m.d.sync += waits.eq(0)
        return m
