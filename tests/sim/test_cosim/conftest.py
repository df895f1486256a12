"""Small components with known behaviour, and known faults, for the tests of the compiled driver."""

from types import SimpleNamespace

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

PAIR = data.StructLayout({"a": 40, "b": 40, "last": 1})
SUM = data.StructLayout({"sum": 41, "last": 1})


class Adder(wiring.Component):
    """Sums pairs: a register stage, then a FIFO. `fault` breaks it in one way.

    Faults: "wrong" drops the carry of the low word, "duplicate" sends a beat twice, "swallow" loses one,
    "withdraw" takes valid back, "change" alters a payload while it waits, "peek" looks at the payload
    of the cycle before.
    """

    def __init__(self, fault=None):
        self.fault = fault
        super().__init__(
            {
                "i_pair": In(stream.Signature(PAIR)),
                "o_sum": Out(stream.Signature(SUM)),
                "o_taking": Out(1),
                "o_count": Out(40),
                "o_never": Out(1),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=SUM.size, depth=4)
        i, o = self.i_pair, self.o_sum
        stage = Signal(SUM)
        full = Signal()
        m.d.comb += [
            i.ready.eq(~full | fifo.w_rdy),
            fifo.w_data.eq(stage),
            fifo.w_en.eq(full),
            o.payload.eq(fifo.r_data),
            o.valid.eq(fifo.r_rdy),
            fifo.r_en.eq(o.ready),
            self.o_taking.eq(i.valid & i.ready),
        ]
        with m.If(i.ready):
            m.d.sync += [full.eq(i.valid), stage.sum.eq(i.p.a + i.p.b), stage.last.eq(i.p.last)]
        with m.If(i.ready & i.valid):
            m.d.sync += self.o_count.eq(self.o_count + 1)

        blocked = Signal(3)
        with m.If(o.valid & ~o.ready):
            m.d.sync += blocked.eq(blocked + 1)
        if self.fault == "wrong":
            with m.If(i.ready):
                m.d.sync += stage.sum.eq((i.p.a[:32] + i.p.b[:32])[:32] | ((i.p.a[32:] + i.p.b[32:]) << 32))
        elif self.fault == "duplicate":
            repeated = Signal()
            with m.If(o.valid & o.ready & ~repeated):
                m.d.comb += fifo.r_en.eq(0)
                m.d.sync += repeated.eq(1)
        elif self.fault == "swallow":
            with m.If(self.o_count == 5):
                m.d.comb += fifo.w_en.eq(0)
        elif self.fault == "withdraw":
            m.d.comb += o.valid.eq(fifo.r_rdy & (blocked != 3))
            m.d.sync += blocked.eq(blocked + (blocked == 3) + (o.valid & ~o.ready))
        elif self.fault == "change":
            m.d.comb += o.p.sum[40].eq(fifo.r_data[40] ^ (blocked == 3))
        elif self.fault == "peek":
            previous = Signal(40)
            m.d.sync += previous.eq(i.p.b)
            with m.If(i.ready):
                m.d.sync += stage.sum.eq(i.p.a + previous)
        return m


class Passthrough(wiring.Component):
    """No clock at all."""

    i: In(stream.Signature(8))
    o: Out(stream.Signature(8))

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += [
            self.o.payload.eq(self.i.payload),
            self.o.valid.eq(self.i.valid),
            self.i.ready.eq(self.o.ready),
        ]
        return m


class _Shuffle(wiring.Component):
    i: In(3)
    o: Out(3)

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += [self.o[0].eq(self.i[0]), self.o[1].eq(~self.i[1]), self.o[2].eq(self.i[2])]
        return m


class FalseLoop(wiring.Component):
    """Counts in a register; a word feeds itself bit by bit, so that CXXRTL needs several passes."""

    i: In(stream.Signature(1))
    o: Out(stream.Signature(3))

    def elaborate(self, _platform):
        m = Module()
        m.submodules.shuffle = shuffle = _Shuffle()
        m.d.comb += [
            shuffle.i[0].eq(self.i.payload),
            shuffle.i[1].eq(shuffle.o[0]),
            shuffle.i[2].eq(shuffle.o[1]),
        ]
        with m.If(self.i.ready):
            m.d.sync += [self.o.payload.eq(shuffle.o), self.o.valid.eq(self.i.valid)]
        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        return m


class TwoClocks(Passthrough):
    def elaborate(self, _platform):
        m = super().elaborate(_platform)
        m.d.pixel += Signal(name="toggle").eq(1)
        return m


@pytest.fixture(scope="session")
def components():
    """The classes and layouts above, by name."""
    return SimpleNamespace(**globals())
