"""Lets beats pass while compute is idle."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class IdleGate(wiring.Component):
    """Passes a stream in cycles in which compute is idle, and one beat at a time if that lasts too long.

    Formula: o is i. A beat is offered in a cycle without `i_compute_busy`, or once it has waited
    `patience_cycles` cycles; offered, it stays so.
    Timing: latency 0, interval 1 while idle, patience_cycles + 1 while busy.
    Numerics: none.
    Cuts: nothing but `i_compute_busy` from what follows while a beat is held.
    Reset: the count.

    Args:
        beat_bits: payload.
        patience_cycles: cycles a beat waits for compute at most, from 1.

    Members:
        i_compute_busy: compute needs this cycle.
        i: beats in.
        o: beats out.

    Raises ValueError if `patience_cycles` is below 1.

    """

    def __init__(self, beat_bits: int, patience_cycles: int) -> None:
        if patience_cycles < 1:
            raise ValueError(f"patience_cycles is {patience_cycles}; allowed: from 1")
        self.patience_cycles = patience_cycles
        super().__init__(
            {
                "i_compute_busy": In(1),
                "i": In(stream.Signature(beat_bits)),
                "o": Out(stream.Signature(beat_bits)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o` while compute is idle."""
        return 0

    @property
    def interval(self) -> int:
        """Cycles between two beats while compute is idle."""
        return 1

    def elaborate(self, platform):
        m = Module()
        waited = Signal(range(self.patience_cycles + 1))
        offered = Signal()  # before, and not taken
        is_open = Signal()
        m.d.comb += [
            is_open.eq(~self.i_compute_busy | offered | (waited == self.patience_cycles)),
            self.o.valid.eq(self.i.valid & is_open),
            self.o.payload.eq(self.i.payload),
            self.i.ready.eq(self.o.ready & is_open),
        ]
        m.d.sync += offered.eq(self.o.valid & ~self.o.ready)
        with m.If(~self.i.valid | is_open):
            m.d.sync += waited.eq(0)
        with m.Else():
            m.d.sync += waited.eq(waited + 1)
        return m
