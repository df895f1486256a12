"""Proofs on ResultWriter as a whole: its window, data before addresses, the last beats, what `enable` stops.

Small: bursts and chunks of two beats of 8 bytes, 64 bytes of memory, two chunks waiting and two under way;
handshakes at full size. Arguments, beats and pauses are free in every cycle. Assumed is what KernelCore keeps
(results begin on a beat; restart comes while nothing is under way, enabled or offered) and, but for the
window, the handshakes and the blocks, that the memory answers a write only when it has it.
"""

from functools import partial

import pytest
from amaranth.hdl import Assert, Assume, Mux, Signal

from nearkv_hdl.bus.axi import axi_write
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.stream.contract import ProgressWatch
from nearkv_hdl.top import result_writer
from nearkv_hdl.top.result_writer import ResultWriter
from nearkv_sim.formal import Bench, Status, prove
from nearkv_sim.formal.axi import altered, assert_block, assert_handshake, assert_window, handshakes_behind

TINY = DESIGNS["tiny"]
ADDRESS_BITS, LENGTH_BITS, BURST_BEATS, CHUNKS, OUTSTANDING = 6, 5, 2, 2, 2
BOUND_CYCLES = 18
DATA_CYCLES = 1  # from an address to its first beat, and between two, while the bus takes them
MEMORIES = ("$mem_v2",)


@pytest.fixture
def small(monkeypatch):
    """Makes a small ResultWriter."""

    def writer(bus_bytes, *_):
        return AxiWriter(bus_bytes, BURST_BEATS, OUTSTANDING, ADDRESS_BITS, LENGTH_BITS)

    monkeypatch.setattr(result_writer, "AxiWriter", writer)
    monkeypatch.setattr(result_writer, "axi_write", lambda _, bus_bytes: axi_write(ADDRESS_BITS, bus_bytes))
    monkeypatch.setattr(result_writer, "_BURST_BEATS", BURST_BEATS)
    monkeypatch.setattr(result_writer, "_CHUNKS", CHUNKS)
    monkeypatch.setattr(result_writer, "_OUTSTANDING", OUTSTANDING)
    return partial(ResultWriter, TINY)


def bench_of(unit):
    """A bench in which the kernel does what the docstring asks of it."""
    bench = Bench(unit)
    m = bench.module
    m.d.comb += Assume(unit.arguments.result_address % TINY.bus_bytes == 0)
    with m.If(unit.restart):
        m.d.comb += [Assume(unit.under_way == 0), Assume(~unit.enable), Assume(~unit.i.valid)]
    return bench


def status_of(bench, **options):
    return prove(bench.module, bench.free, **options).status


def window_bench(unit, bus):
    bench = bench_of(unit)
    base, nbytes = unit.arguments.result_address, unit.arguments.result_bytes
    window = {"base": base[:ADDRESS_BITS], "nbytes": nbytes[:ADDRESS_BITS]}
    assert_window(bench, bus, "aw", TINY.bus_bytes, taken=1, **window)
    return bench


def test_writes_lie_in_the_result_window(small):
    unit = small()
    assert status_of(window_bench(unit, unit.m_axi), cut=MEMORIES) is Status.PROVED
    for broken in ("awaddr", "awlen"):
        unit = small()
        bus = unit.m_axi
        values = {"awaddr": bus.awaddr + TINY.bus_bytes, "awlen": bus.awlen + 1}
        bench = window_bench(unit, altered(bus, **{broken: values[broken]}))
        assert status_of(bench, cut=MEMORIES) is Status.REFUTED


def block_bench(unit, bus):
    bench = bench_of(unit)
    assert_block(bench, bus, "aw", TINY.bus_bytes, BURST_BEATS)
    return bench


def test_bursts_stay_in_their_block(small):
    unit = small()
    assert status_of(block_bench(unit, unit.m_axi), cut=MEMORIES) is Status.PROVED
    unit = small()
    bus = altered(unit.m_axi, awlen=unit.m_axi.awlen + 1)
    assert status_of(block_bench(unit, bus), cut=MEMORIES) is Status.REFUTED


def handshake_bench(unit, bus):
    bench = bench_of(unit)
    for channel in ("aw", "w"):
        assert_handshake(bench, bus, channel)
    return bench


def test_what_is_offered_stays_till_it_is_taken():
    unit = ResultWriter(TINY)
    assert status_of(handshake_bench(unit, unit.m_axi), cut=MEMORIES) is Status.PROVED


def test_an_offer_that_changes_is_refuted(small):
    for broken in ("awvalid", "wlast"):
        unit = small()
        bus = unit.m_axi
        values = {"awvalid": bus.awvalid & unit.enable, "wlast": ~unit.i.valid}
        bench = handshake_bench(unit, altered(bus, **{broken: values[broken]}))
        assert status_of(bench, bound=BOUND_CYCLES) is Status.REFUTED


def test_no_valid_waits_for_a_ready():
    bus = (unit := ResultWriter(TINY)).m_axi
    assert handshakes_behind(Bench(unit), bus.awvalid, bus.wvalid) == set()
    bus = (unit := ResultWriter(TINY)).m_axi
    assert handshakes_behind(Bench(unit), bus.awvalid & bus.wready, bus.wvalid) == {"m_axi__wready"}


def offers_of(m, bus):
    """A burst is offered in this cycle for the first time."""
    waiting, offers = Signal(), Signal()
    m.d.sync += waiting.eq(bus.awvalid & ~bus.awready)
    m.d.comb += offers.eq(bus.awvalid & ~waiting)
    return offers


def answer_only_what_was_written(m, bus):
    """Assume a response only for a burst whose address and last beat have been taken (A3.3.1)."""
    addresses, lasts = Signal(4), Signal(4)
    answered = bus.bvalid & bus.bready
    m.d.sync += [
        addresses.eq(addresses + (bus.awvalid & bus.awready) - answered),
        lasts.eq(lasts + (bus.wvalid & bus.wready & bus.wlast) - answered),
    ]
    with m.If((addresses == 0) | (lasts == 0)):
        m.d.comb += Assume(~bus.bvalid)


def data_bench(bench, bus, within=DATA_CYCLES):
    """Beats that are due come in time, whatever the source of the writer does."""
    m = bench.module
    answer_only_what_was_written(m, bus)
    due = Signal(6)
    m.d.sync += due.eq(due + Mux(offers_of(m, bus), bus.awlen + 1, 0) - (bus.wvalid & bus.wready))
    watch = ProgressWatch(within, "a beat of an address offered")
    bench.add("data", watch, pending=due != 0, counts=1, happens=bus.wvalid)
    return bench


def test_an_address_has_its_data_behind_it(small):
    unit = small()
    bench = data_bench(bench_of(unit), unit.m_axi)
    assert status_of(bench, bound=BOUND_CYCLES) is Status.BOUNDED
    unit = small()
    bench = data_bench(bench_of(unit), unit.m_axi, DATA_CYCLES - 1)
    assert status_of(bench, bound=BOUND_CYCLES) is Status.REFUTED
    # AxiWriter alone sends addresses ahead.
    unit = AxiWriter(TINY.bus_bytes, BURST_BEATS, OUTSTANDING, ADDRESS_BITS, LENGTH_BITS)
    bench = data_bench(Bench(unit), unit.m_axi)
    assert status_of(bench, bound=BOUND_CYCLES) is Status.REFUTED


def last_bench(unit, bus):
    """The last beat of any chosen burst is marked, and no other."""
    bench = bench_of(unit)
    m = bench.module
    offers, moves = offers_of(m, bus), bus.wvalid & bus.wready
    ends = moves & bus.wlast
    before = Signal(4)  # bursts offered whose last beat has not come
    chosen, followed, over = bench.free_signal("chosen"), Signal(), Signal()
    ahead, left = Signal.like(before), Signal(8)
    m.d.sync += before.eq(before + offers - ends)
    with m.If(~followed & chosen & offers):
        m.d.sync += [followed.eq(1), ahead.eq(before - ends), left.eq(bus.awlen)]
    with m.If(followed & ~over & moves):
        with m.If(ahead != 0):
            m.d.sync += ahead.eq(ahead - ends)
        with m.Else():
            m.d.sync += [
                left.eq(left - 1),
                over.eq(ends),
                Assert(ends == (left == 0), "WLAST at the wrong beat"),
            ]
    return bench


def test_the_last_beat_of_a_burst_is_marked(small):
    unit = small()
    assert status_of(last_bench(unit, unit.m_axi), bound=BOUND_CYCLES) is Status.BOUNDED
    unit = small()
    bench = last_bench(unit, altered(unit.m_axi, awlen=unit.m_axi.awlen ^ 1))
    assert status_of(bench, bound=BOUND_CYCLES) is Status.REFUTED


def under_way_bench(unit, limit=OUTSTANDING):
    """Bursts and chunks that nobody has acknowledged, the bursts counted from outside."""
    bench = bench_of(unit)
    m, bus = bench.module, unit.m_axi
    unanswered = Signal(4)
    m.d.sync += [
        unanswered.eq(unanswered + offers_of(m, bus) - (bus.bvalid & bus.bready)),
        Assert(unanswered <= limit, "more bursts under way than allowed"),
        Assert(unit.under_way <= limit, "more chunks under way than allowed"),
    ]
    return bench, unanswered


def test_no_more_is_under_way_than_allowed(small):
    bench, _ = under_way_bench(small())
    assert status_of(bench) is Status.PROVED
    bench, _ = under_way_bench(small(), OUTSTANDING - 1)
    assert status_of(bench) is Status.REFUTED


def enable_bench(unit, enable):
    """No chunk is begun without `enable`."""
    bench = bench_of(unit)
    m = bench.module
    before, stopped = Signal.like(unit.under_way), Signal()
    m.d.sync += [before.eq(unit.under_way), stopped.eq(~enable)]
    with m.If(stopped):
        m.d.sync += Assert(unit.under_way <= before, "a chunk is begun while not enabled")
    return bench


def writes_bench(unit, count):
    """All that is on the bus belongs to a chunk that is counted as under way."""
    bench, unanswered = under_way_bench(unit)
    bus = unit.m_axi
    answer_only_what_was_written(bench.module, bus)
    with bench.module.If(count == 0):
        bench.module.d.sync += Assert(
            ~bus.awvalid & ~bus.wvalid & (unanswered == 0), "a write, but nothing under way"
        )
    return bench


def test_nothing_is_written_after_enable_but_what_is_under_way(small):
    unit = small()
    assert status_of(enable_bench(unit, unit.enable)) is Status.PROVED
    unit = small()
    assert status_of(enable_bench(unit, unit.enable & ~unit.i.valid)) is Status.REFUTED
    unit = small()
    bench = writes_bench(unit, unit.under_way)
    assert status_of(bench, bound=BOUND_CYCLES) is Status.BOUNDED
    unit = small()
    bench = writes_bench(unit, unit.under_way >> 1)
    assert status_of(bench, bound=BOUND_CYCLES) is Status.REFUTED
