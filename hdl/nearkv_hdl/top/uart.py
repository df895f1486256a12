"""Serial line, 8 data bits, no parity, one stop bit."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import cdc, stream, wiring
from amaranth.lib.wiring import In, Out

LEAST_DIVISOR = 4  # below, the middle of a bit is no longer told from its edges
_DATA_BITS = 8
_FRAME_BITS = 1 + _DATA_BITS + 1
_SYNCHRONISER_RANKS = 2


def check_divisor(divisor: int) -> None:
    """Raise ValueError unless a bit of that many cycles can be sampled in its middle."""
    if divisor < LEAST_DIVISOR:
        raise ValueError(f"divisor is {divisor}; allowed: from {LEAST_DIVISOR} cycles per bit")


class UartReceiver(wiring.Component):
    """Bytes from a line.

    Formula: a falling edge begins a byte; its bits are sampled in their middle, lowest first. A byte whose
    stop bit is 0, or whose start bit is not 0 any more in its middle, is dropped.
    Timing: `latency` from the falling edge to the byte, in the middle of its stop bit; `interval` is 10 bits.
    A byte that is not taken in its cycle is lost. With a divisor from 16, the line may be 4 % faster or
    slower.
    Numerics: none.
    Reset: idle.

    Args:
        divisor: cycles per bit.

    Members:
        i: the line, asynchronous.
        o: bytes, always ready.

    Raises ValueError for a divisor below LEAST_DIVISOR.

    """

    def __init__(self, divisor: int) -> None:
        check_divisor(divisor)
        self.divisor = divisor
        super().__init__({"i": In(1, init=1), "o": Out(stream.Signature(8, always_ready=True))})

    @property
    def latency(self) -> int:
        """Cycles from a byte's first edge at the pin to the byte."""
        return _SYNCHRONISER_RANKS + self.divisor // 2 + (_FRAME_BITS - 1) * self.divisor + 1

    @property
    def interval(self) -> int:
        """Cycles between two bytes of a line that is never idle."""
        return _FRAME_BITS * self.divisor

    def elaborate(self, platform):
        m = Module()
        line = Signal(init=1)
        m.submodules.synchroniser = cdc.FFSynchronizer(self.i, line, init=1, stages=_SYNCHRONISER_RANKS)
        wait = Signal(range(self.divisor))
        bits_left = Signal(range(_FRAME_BITS + 1))
        shift = Signal(_FRAME_BITS, reset_less=True)  # start bit lowest when all are in
        done = Signal()
        m.d.sync += done.eq(0)
        with m.If(bits_left == 0), m.If(~line & ~done):
            m.d.sync += [bits_left.eq(_FRAME_BITS), wait.eq(self.divisor // 2 - 1)]
        with m.Elif(wait == 0):
            m.d.sync += [
                wait.eq(self.divisor - 1),
                shift.eq(Cat(shift[1:], line)),
                bits_left.eq(bits_left - 1),
                done.eq(bits_left == 1),
            ]
            with m.If((bits_left == _FRAME_BITS) & line):
                m.d.sync += bits_left.eq(0)  # a glitch, not a start bit
        with m.Else():
            m.d.sync += wait.eq(wait - 1)
        m.d.comb += [self.o.payload.eq(shift[1:-1]), self.o.valid.eq(done & shift[-1])]
        return m


class UartTransmitter(wiring.Component):
    """Bytes onto a line.

    Formula: start bit 0, data bits lowest first, stop bit 1.
    Timing: latency 1 to the start bit, interval 10 · divisor cycles; `ready` only between bytes.
    Numerics: none.
    Reset: idle, line high.

    Args:
        divisor: cycles per bit.

    Members:
        i: bytes.
        o: the line, from a register.

    Raises ValueError for a divisor below LEAST_DIVISOR.

    """

    def __init__(self, divisor: int) -> None:
        check_divisor(divisor)
        self.divisor = divisor
        super().__init__({"i": In(stream.Signature(8)), "o": Out(1, init=1)})

    @property
    def latency(self) -> int:
        """Cycles from a byte to its start bit."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two bytes."""
        return _FRAME_BITS * self.divisor

    def elaborate(self, platform):
        m = Module()
        wait = Signal(range(self.divisor))
        bits_left = Signal(range(_FRAME_BITS + 1))
        shift = Signal(_FRAME_BITS - 1, reset_less=True)
        m.d.comb += self.i.ready.eq((bits_left == 0) | ((bits_left == 1) & (wait == 0)))
        with m.If(self.i.ready):
            m.d.sync += bits_left.eq(0)
            with m.If(self.i.valid):
                m.d.sync += [
                    self.o.eq(0),
                    shift.eq(Cat(self.i.payload, 1)),
                    wait.eq(self.divisor - 1),
                    bits_left.eq(_FRAME_BITS),
                ]
        with m.Elif(wait == 0):
            m.d.sync += [
                self.o.eq(shift[0]),
                shift.eq(shift[1:]),
                wait.eq(self.divisor - 1),
                bits_left.eq(bits_left - 1),
            ]
        with m.Else():
            m.d.sync += wait.eq(wait - 1)
        return m
