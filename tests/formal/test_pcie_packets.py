"""Proofs on RQ: `tvalid` does not fall within a packet, which the integrated block cannot bear.

In two steps: WriteRequester gives a packet's beats without a gap, whatever its bus does; RequestArbiter adds
none. The size is the one that is built: payloads up to 1024 bytes, 8 that wait.
"""

import pytest
from amaranth.hdl import Assert, Assume, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from nearkv_hdl.pcie.request_arbiter import RequestArbiter
from nearkv_hdl.pcie.write_requester import WriteRequester
from nearkv_sim.formal import Bench, Status, prove

TAGS = 2


class FlatBus(wiring.Component):
    """WriteRequester with every signal of its bus as a port, for a bench that drives ports and streams."""

    def __init__(self):
        self.unit = WriteRequester()
        members = dict(self.unit.signature.members)
        self.bus = members.pop("s_axi").signature.members
        super().__init__({**members, **self.bus})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.unit = unit = self.unit
        wiring.connect(m, unit.packet, wiring.flipped(self.packet))
        pairs = [
            (getattr(self, name), getattr(unit.s_axi, name), member) for name, member in self.bus.items()
        ]
        names = ("max_payload", "bus_master_enable")
        pairs += [(getattr(self, name), getattr(unit, name), unit.signature.members[name]) for name in names]
        for ours, theirs, member in pairs:
            source, sink = (ours, theirs) if member.flow is In else (theirs, ours)
            m.d.comb += Value.cast(sink).eq(Value.cast(source))
        return m


def within_packet(m, valid, ready, last):
    """Whether a packet's first beat was taken and its last was not."""
    within = Signal()
    with m.If(valid & ready):
        m.d.sync += within.eq(~last)
    return within


def write_bench(holds):
    """WriteRequester, any bursts and strobes, sizes changing at any time; `holds` is asserted."""
    unit = FlatBus()
    bench = Bench(unit)
    packet = unit.packet
    within = within_packet(bench.module, packet.valid, packet.ready, packet.payload.last)
    bench.module.d.sync += Assert(holds(within, packet.valid), "breached")
    return bench


def test_write_packets_have_no_gap():
    bench = write_bench(lambda within, valid: ~within | valid)
    proof = prove(bench.module, bench.free)
    assert proof.status is Status.PROVED, proof.message
    # Packets of several beats do come.
    bench = write_bench(lambda within, _valid: ~within)
    assert prove(bench.module, bench.free).status is Status.REFUTED


@pytest.mark.parametrize(("source_has_gaps", "status"), [(False, Status.PROVED), (True, Status.REFUTED)])
def test_the_arbiter_adds_no_gap(source_has_gaps, status):
    unit = RequestArbiter(TAGS)
    bench = Bench(unit)
    m, packet, rq = bench.module, unit.packet, unit.rq
    if not source_has_gaps:
        within = within_packet(m, packet.valid, packet.ready, packet.payload.last)
        m.d.comb += Assume(~within | packet.valid)
    m.d.sync += Assert(~within_packet(m, rq.tvalid, rq.tready, rq.tlast) | rq.tvalid, "a gap in a packet")
    assert prove(m, bench.free).status is status
