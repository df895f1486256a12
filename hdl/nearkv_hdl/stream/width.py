"""Streams of bytes from one bus width to another."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.formats import is_power_of_two


def check_ratio(wide_bytes: int, narrow_bytes: int) -> int:
    """Narrow beats per wide beat; ValueError unless that is a power of two."""
    ratio, rest = divmod(wide_bytes, narrow_bytes)
    if rest or not is_power_of_two(ratio):
        raise ValueError(
            f"wide_bytes is {wide_bytes} with narrow_bytes {narrow_bytes}; allowed: a power of two times it"
        )
    return ratio


class Widen(wiring.Component):
    """Collects beats into wider ones, first byte lowest.

    Formula: wide beat n holds narrow beats n·r to n·r + r − 1, r = wide_bytes / narrow_bytes. A fraction of a
    wide beat waits for the rest.
    Timing: latency 1 from the last of r beats, interval 1 narrow beat. A stall of `o` stops `i` once a wide
    beat is complete.
    Numerics: none.
    Cuts: `o` comes from registers; `i.ready` follows `o.ready` through a gate.
    Reset: count and valid bit.

    Args:
        narrow_bytes, wide_bytes: widths, the second a power of two times the first.

    Members:
        i: narrow beats.
        o: wide beats.

    Raises ValueError for other widths.

    """

    def __init__(self, narrow_bytes: int, wide_bytes: int) -> None:
        self.ratio = check_ratio(wide_bytes, narrow_bytes)
        self.narrow_bytes = narrow_bytes
        super().__init__(
            {"i": In(stream.Signature(8 * narrow_bytes)), "o": Out(stream.Signature(8 * wide_bytes))}
        )

    @property
    def latency(self) -> int:
        """Cycles from the last beat collected to the wide one."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two narrow beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        beats = [Signal(8 * self.narrow_bytes, name=f"beat{n}", reset_less=True) for n in range(self.ratio)]
        index = Signal(range(self.ratio))
        full = Signal()
        is_last = index == self.ratio - 1
        m.d.comb += [
            self.i.ready.eq(~full | self.o.ready),
            self.o.valid.eq(full),
            self.o.payload.eq(Cat(*beats)),
        ]
        with m.If(self.o.ready):
            m.d.sync += full.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [full.eq(is_last), index.eq(Mux(is_last, 0, index + 1))]
            for n, beat in enumerate(beats):
                with m.If(index == n):
                    m.d.sync += beat.eq(self.i.payload)
        return m


class Narrow(wiring.Component):
    """Splits beats into narrower ones, lowest byte first.

    Formula: the inverse of Widen.
    Timing: latency 1 to the first of r beats, interval 1 narrow beat, wide beats back to back.
    Numerics: none.
    Cuts: `o` comes from registers; `i.ready` follows `o.ready` through a gate.
    Reset: count and valid bit.

    Args:
        wide_bytes, narrow_bytes: widths, the first a power of two times the second.

    Members:
        i: wide beats.
        o: narrow beats.

    Raises ValueError for other widths.

    """

    def __init__(self, wide_bytes: int, narrow_bytes: int) -> None:
        self.ratio = check_ratio(wide_bytes, narrow_bytes)
        self.wide_bytes = wide_bytes
        self.narrow_bytes = narrow_bytes
        super().__init__(
            {"i": In(stream.Signature(8 * wide_bytes)), "o": Out(stream.Signature(8 * narrow_bytes))}
        )

    @property
    def latency(self) -> int:
        """Cycles from a wide beat to its first narrow one."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two narrow beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rest = Signal(8 * self.wide_bytes, reset_less=True)
        left = Signal(range(self.ratio + 1))  # narrow beats that wait
        m.d.comb += [
            self.i.ready.eq((left == 0) | ((left == 1) & self.o.ready)),
            self.o.valid.eq(left != 0),
            self.o.payload.eq(rest[: 8 * self.narrow_bytes]),
        ]
        with m.If(self.i.ready):
            m.d.sync += [rest.eq(self.i.payload), left.eq(Mux(self.i.valid, self.ratio, 0))]
        with m.Elif(self.o.ready):
            m.d.sync += [rest.eq(rest >> 8 * self.narrow_bytes), left.eq(left - 1)]
        return m
