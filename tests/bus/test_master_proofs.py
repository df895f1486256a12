"""Proofs on small AXI managers: no address outside the window, no crossing, room for all that is requested.

No address outside the window is proved in two steps, for all time: what WindowCheck lets pass lies in the
window, and what BurstSplitter makes of a command lies in the command. The managers, which add a register, are
searched whole to a bound. The channels of the bus are free, responses that nobody asked for included; the
window is any window that stands still. Small addresses suffice: the arithmetic is the same at every width.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from nearkv_hdl.bus.axi import axi_lite
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS as ADDRESS_BITS_LITE
from nearkv_hdl.bus.axi_lite import AxiLiteSubordinate
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.bus.burst import BurstSplitter
from nearkv_hdl.bus.transfer import StatusQueue
from nearkv_hdl.bus.window import WindowCheck
from nearkv_hdl.stream.contract import StreamContract
from nearkv_sim.formal import Bench, Status, prove, prove_no_deadlock, prove_stream_contract
from nearkv_sim.formal.axi import hold

ADDRESS_BITS, LENGTH_BITS, BUS_BYTES, BURST_BEATS, DEPTH = 6, 5, 4, 2, 4
CHECKED_BITS = 4  # of addresses and lengths of WindowCheck alone
BOUND_CYCLES = 14  # two commands of two bursts
MEMORIES = ("$mem_v2",)  # what queues hold never reaches an address


def reader():
    return AxiReader(BUS_BYTES, BURST_BEATS, 2, DEPTH, ADDRESS_BITS, LENGTH_BITS)


def writer():
    return AxiWriter(BUS_BYTES, BURST_BEATS, 2, ADDRESS_BITS, LENGTH_BITS)


def splitter():
    return BurstSplitter(BUS_BYTES, BURST_BEATS, ADDRESS_BITS, LENGTH_BITS)


def window_check():
    return WindowCheck(2, CHECKED_BITS, CHECKED_BITS)


def statuses():
    return StatusQueue(ADDRESS_BITS, 2)


def window_bench(excess):
    """Commands pass exactly if they lie in a window that ends `excess` bytes early."""
    unit = window_check()
    bench = Bench(unit)
    m, checked = bench.module, unit.o.payload
    hold(m, Cat(unit.window_base, unit.window_bytes))
    end = Signal(CHECKED_BITS + 1)
    inside = Signal()
    m.d.comb += [
        end.eq(unit.window_base + unit.window_bytes - excess),
        inside.eq(
            (checked.address >= unit.window_base) & (checked.last >= checked.address) & (checked.last < end)
        ),
    ]
    with m.If(unit.o.valid & ~checked.empty):
        m.d.sync += Assert(inside != checked.refused, "passes exactly what is inside")
    return bench


def test_the_window_lets_pass_what_is_inside():
    bench = window_bench(0)
    assert prove(bench.module, bench.free).status is Status.PROVED
    bench = window_bench(1)
    assert prove(bench.module, bench.free).status is Status.REFUTED


class BurstWatch(wiring.Component):
    """Asserts that every byte of a burst lies in a range, and all in one block of burst_beats beats."""

    def __init__(self):
        super().__init__(
            {
                "valid": In(1),
                "first": In(ADDRESS_BITS),
                "beats_after": In(8),
                "last_lane": In(2),
                "low": In(ADDRESS_BITS),
                "end": In(ADDRESS_BITS + 1),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        words = self.first >> 2
        last = ((words + self.beats_after) << 2) + self.last_lane
        with m.If(self.valid):
            m.d.sync += [
                Assert(self.first >= self.low, "below the range"),
                Assert(last < self.end, "above the range"),
                Assert((words % BURST_BEATS) + self.beats_after < BURST_BEATS, "crosses a block"),
            ]
        return m


def splitter_bench(excess):
    """Bursts lie between any two addresses that all commands lie between, but for `excess` bytes."""
    unit = splitter()
    bench = Bench(unit)
    m, command, burst = bench.module, unit.i.payload, unit.o.payload
    low, high = (bench.free_signal(name, ADDRESS_BITS) for name in ("low", "high"))
    hold(m, Cat(low, high))
    with m.If(unit.i.valid & ~command.empty & ~command.refused):
        m.d.comb += [
            Assume(command.address >= low),
            Assume(command.last >= command.address),
            Assume(command.last <= high),
        ]
    bench.add(
        "bursts",
        BurstWatch(),
        valid=unit.o.valid & burst.issued,
        first=burst.address,
        beats_after=burst.beats - 1,
        last_lane=burst.last_lane,
        low=low,
        end=high + 1 - excess,
    )
    return bench


def test_bursts_stay_within_their_command():
    bench = splitter_bench(0)
    assert prove(bench.module, bench.free).status is Status.PROVED
    bench = splitter_bench(1)
    assert prove(bench.module, bench.free).status is Status.REFUTED


@pytest.mark.parametrize(("make", "prefix"), [(reader, "ar"), (writer, "aw")])
def test_managers_issue_nothing_outside_the_window(make, prefix):
    unit = make()
    bench = Bench(unit)
    hold(bench.module, Cat(unit.window_base, unit.window_bytes))
    bus = unit.m_axi
    bench.add(
        "bursts",
        BurstWatch(),
        valid=getattr(bus, f"{prefix}valid"),
        first=getattr(bus, f"{prefix}addr"),
        beats_after=getattr(bus, f"{prefix}len"),
        last_lane=0,  # lanes are the splitter's
        low=unit.window_base,
        end=unit.window_base + unit.window_bytes,
    )
    proof = prove(bench.module, bench.free, cut=MEMORIES, bound=BOUND_CYCLES)
    assert proof.status is Status.BOUNDED, proof.message


def room_bench(limit):
    """Beats requested and not yet taken from `o_data`, counted from outside."""
    unit = reader()
    bench = Bench(unit)
    m, bus = bench.module, unit.m_axi
    under_way = Signal(5)
    requested = Mux(bus.arvalid & bus.arready, bus.arlen + 1, 0)
    m.d.sync += [
        under_way.eq(under_way + requested - (unit.o_data.valid & unit.o_data.ready)),
        Assert(under_way <= limit, "more requested than there is room for"),
    ]
    # The bus answers what was requested, and nothing else.
    owed = Signal(5)
    m.d.sync += owed.eq(owed + requested - (bus.rvalid & bus.rready))
    with m.If(owed == 0):
        m.d.comb += Assume(~bus.rvalid)
    return bench


def test_nothing_is_requested_without_room():
    bench = room_bench(DEPTH)
    proof = prove(bench.module, bench.free)
    assert proof.status is Status.PROVED, proof.message
    bench = room_bench(DEPTH - 1)
    assert prove(bench.module, bench.free).status is Status.REFUTED


def add_contracts(bench, bus, prefixes):
    """AXI demands of a channel what the stream contract does: valid held, payload stable."""
    for prefix in prefixes:
        members = [name for name in bus.signature.members if name.startswith(prefix)]
        members = [name for name in members if name not in (f"{prefix}valid", f"{prefix}ready", "read_data")]
        payload = Cat(Value.cast(getattr(bus, name)) for name in members)
        bench.add(
            prefix,
            StreamContract(len(payload)),
            valid=getattr(bus, f"{prefix}valid"),
            ready=getattr(bus, f"{prefix}ready"),
            payload=payload,
        )


@pytest.mark.parametrize(("make", "prefixes"), [(reader, ("ar",)), (writer, ("aw", "w"))])
def test_channels_keep_the_handshake(make, prefixes):
    unit = make()
    bench = Bench(unit)
    add_contracts(bench, unit.m_axi, prefixes)
    proof = prove(bench.module, bench.free, cut=MEMORIES)
    assert proof.status is Status.PROVED, proof.message


class LitePorts(wiring.Component):
    """The subordinate with its ports side by side, and the stream that a bench needs at least one of."""

    def __init__(self):
        self.inner = AxiLiteSubordinate()
        ports = {name: member.flip() for name, member in axi_lite(ADDRESS_BITS_LITE).members.items()}
        super().__init__({**ports, "read_data": In(32), "i": In(stream.Signature(1, always_ready=True))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.inner = inner = self.inner
        for name, member in inner.s_axi.signature.members.items():
            ours, theirs = getattr(self, name), getattr(inner.s_axi, name)
            m.d.comb += theirs.eq(ours) if member.flow is In else ours.eq(theirs)
        m.d.comb += inner.access.read_data.eq(self.read_data)
        return m


def test_responses_of_axi_lite_keep_the_handshake():
    unit = LitePorts()
    bench = Bench(unit)
    add_contracts(bench, unit, ("b", "r"))
    assert prove(bench.module, bench.free).status is Status.PROVED


@pytest.mark.parametrize("make", [reader, writer, splitter, window_check, statuses])
def test_streams_keep_the_contract(make):
    proof = prove_stream_contract(make, cut=MEMORIES)
    assert proof.status is Status.PROVED, proof.message


def willing_memory(m, unit, _bench):
    """Takes every address; offers a beat whenever one is owed."""
    bus = unit.m_axi
    owed = Signal(8)
    m.d.sync += owed.eq(owed + Mux(bus.arvalid & bus.arready, bus.arlen + 1, 0) - (bus.rvalid & bus.rready))
    m.d.comb += [Assume(bus.arready), Assume(bus.rvalid == (owed != 0))]


def willing_sink(m, unit, _bench):
    """Takes every address and beat; offers a response whenever one is owed."""
    bus = unit.m_axi
    owed = Signal(8)
    m.d.sync += owed.eq(owed + (bus.wvalid & bus.wready & bus.wlast) - (bus.bvalid & bus.bready))
    m.d.comb += [Assume(bus.awready), Assume(bus.wready), Assume(bus.bvalid == (owed != 0))]


@pytest.mark.parametrize(
    ("make", "constrain", "within", "bound"),
    [
        (splitter, None, 2, None),
        (reader, willing_memory, 12, None),
        (writer, willing_sink, 12, 24),
    ],
    ids=["splitter", "reader", "writer"],
)
def test_nothing_stands_still(make, constrain, within, bound):
    proof = prove_no_deadlock(make, within=within, constrain=constrain, cut=(), bound=bound)
    assert proof.status is (Status.PROVED if bound is None else Status.BOUNDED), proof.message
