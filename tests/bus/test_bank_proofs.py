"""Proofs on small readers of two banks: windows and banks on every port, stream contract, progress.

Two AxiReaders of two commands each, buses free as in test_master_proofs.py.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.bank_readers import BankReaders
from nearkv_sim.formal import Bench, Status, prove, prove_no_deadlock, prove_stream_contract

ADDRESS_BITS, LENGTH_BITS, BUS_BYTES, BURST_BEATS, DEPTH, BANK_BYTES = 6, 5, 4, 2, 4, 8
BANK_BIT = 3
BOUND_CYCLES = 14  # two commands of two bursts
MEMORIES = ("$mem_v2",)


class TwoBanks(wiring.Component):
    """BankReaders with its readers."""

    def __init__(self):
        self.banks = BankReaders(2, BANK_BYTES, BUS_BYTES, 2, ADDRESS_BITS, LENGTH_BITS)
        self.readers = [
            AxiReader(BUS_BYTES, BURST_BEATS, 2, DEPTH, ADDRESS_BITS, LENGTH_BITS) for _ in range(2)
        ]
        own = self.banks.signature.members
        super().__init__(
            {
                **{name: own[name] for name in ("i_command", "o_data", "o_status")},
                "window_base": In(ADDRESS_BITS),
                "window_bytes": In(ADDRESS_BITS),
                **{f"m_axi{i}": Out(axi_read(ADDRESS_BITS, BUS_BYTES)) for i in range(2)},
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.banks = banks = self.banks
        wiring.connect(m, wiring.flipped(self.i_command), banks.i_command)
        wiring.connect(m, banks.o_data, wiring.flipped(self.o_data))
        wiring.connect(m, banks.o_status, wiring.flipped(self.o_status))
        for i, reader in enumerate(self.readers):
            m.submodules[f"reader{i}"] = reader
            banks.attach(m, i, reader.i_command, reader.o_data, reader.o_status)
            wiring.connect(m, reader.m_axi, wiring.flipped(getattr(self, f"m_axi{i}")))
            m.d.comb += [
                reader.window_base.eq(self.window_base),
                reader.window_bytes.eq(self.window_bytes),
            ]
        return m


def port_bench(excess, swapped):
    """Every burst lies in the window, but for `excess` bytes, and in a bank of its port, or of the other."""
    unit = TwoBanks()
    bench = Bench(unit)
    m, command = bench.module, unit.i_command.payload
    window = Cat(unit.window_base, unit.window_bytes)
    before, started = Signal(len(window), reset_less=True), Signal(reset_less=True)
    m.d.sync += [before.eq(window), started.eq(1)]
    with m.If(started):
        m.d.comb += Assume(window == before)
    # Others stay with the reader of their first byte.
    last = command.address + command.bytes - 1
    m.d.comb += Assume((command.bytes == 0) | (last[BANK_BIT:] == command.address[BANK_BIT:]))
    for i in range(2):
        bus = getattr(unit, f"m_axi{i}")
        beyond = (bus.araddr[2:] + bus.arlen) << 2
        with m.If(bus.arvalid):
            m.d.sync += [
                Assert(bus.araddr >= unit.window_base, "below the window"),
                Assert(beyond < unit.window_base + unit.window_bytes - excess, "above the window"),
                Assert(bus.araddr[BANK_BIT] == (i ^ swapped), "of another bank"),
            ]
    return bench


@pytest.mark.parametrize(
    ("excess", "swapped", "status"),
    [(0, 0, Status.BOUNDED), (4, 0, Status.REFUTED), (0, 1, Status.REFUTED)],
    ids=["", "smaller window", "other bank"],
)
def test_ports_issue_nothing_outside_window_and_banks(excess, swapped, status):
    bench = port_bench(excess, swapped)
    proof = prove(bench.module, bench.free, cut=MEMORIES, bound=BOUND_CYCLES)
    assert proof.status is status, proof.message


def test_streams_keep_the_contract():
    # PDR does not find the invariant that ties the queues of the readers to the order within minutes.
    proof = prove_stream_contract(TwoBanks, bound=20)
    assert proof.status is Status.BOUNDED, proof.message


def willing_memories(m, unit, _bench):
    """Take every address; offer a beat whenever one is owed."""
    for i in range(2):
        bus = getattr(unit, f"m_axi{i}")
        owed = Signal(8, name=f"owed{i}")
        requested = Mux(bus.arvalid & bus.arready, bus.arlen + 1, 0)
        m.d.sync += owed.eq(owed + requested - (bus.rvalid & bus.rready))
        m.d.comb += [Assume(bus.arready), Assume(bus.rvalid == (owed != 0))]


def test_nothing_stands_still():
    proof = prove_no_deadlock(TwoBanks, within=12, constrain=willing_memories, cut=(), bound=24)
    assert proof.status is Status.BOUNDED, proof.message
