"""Room for the completions of reads that are under way."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import MAX_BURST_BEATS
from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_hdl.pcie.read_splitter import PAGE_BEATS

CREDIT_BYTES = 16
BEAT_CREDITS = BEAT_BYTES // CREDIT_BYTES


class CompletionRoom(wiring.Component):
    """Counts what the integrated block's completion buffer could still take.

    An endpoint offers unlimited credit for completions, so it must not ask for more than it can store
    (PCI Express Base Specification 3.1, 2.6.1).

    Formula: a request of n beats that may be answered in h completions needs h headers and 4 · n + h
    credits of 16 bytes: header and data share the buffer. It `fits` if both are free.
    Timing: `fits` in the same cycle; counts change in the next.
    Numerics: unsigned.
    Cuts: `fits` is gates behind the counts.
    Reset: the counts.

    Args:
        completion_headers, completion_bytes: of the buffer, from those of one request of 4 KiB.

    Members:
        more_beats, needed_headers: the next request's beats − 1 and headers.
        fits: there is room for it.
        take: it is issued; only if it fits.
        give, given_more_beats, given_headers: a request's room is given back.
        headers_free, credits_free: counts.

    Raises ValueError for too small a buffer.

    """

    def __init__(self, completion_headers: int, completion_bytes: int) -> None:
        least_bytes = PAGE_BEATS * (BEAT_CREDITS + 1) * CREDIT_BYTES
        if completion_headers < PAGE_BEATS:
            raise ValueError(f"completion_headers is {completion_headers}; allowed: from {PAGE_BEATS}")
        if completion_bytes < least_bytes:
            raise ValueError(f"completion_bytes is {completion_bytes}; allowed: from {least_bytes}")
        self.credits = completion_bytes // CREDIT_BYTES
        beats, of_request = range(MAX_BURST_BEATS), range(PAGE_BEATS + 1)
        super().__init__(
            {
                "more_beats": In(beats),
                "needed_headers": In(of_request),
                "fits": Out(1),
                "take": In(1),
                "give": In(1),
                "given_more_beats": In(beats),
                "given_headers": In(of_request),
                "headers_free": Out(range(completion_headers + 1), init=completion_headers),
                "credits_free": Out(range(self.credits + 1), init=self.credits),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from what is given back to `fits`."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two requests."""
        return 1

    def elaborate(self, platform):
        m = Module()
        needed = Signal(range(MAX_BURST_BEATS * (BEAT_CREDITS + 1) + 1))
        given = Signal.like(needed)
        m.d.comb += [
            needed.eq(BEAT_CREDITS * (self.more_beats + 1) + self.needed_headers),
            given.eq(BEAT_CREDITS * (self.given_more_beats + 1) + self.given_headers),
            self.fits.eq((self.credits_free >= needed) & (self.headers_free >= self.needed_headers)),
        ]
        m.d.sync += [
            self.credits_free.eq(self.credits_free - Mux(self.take, needed, 0) + Mux(self.give, given, 0)),
            self.headers_free.eq(
                self.headers_free
                - Mux(self.take, self.needed_headers, 0)
                + Mux(self.give, self.given_headers, 0)
            ),
        ]
        return m
