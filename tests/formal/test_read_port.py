"""Proofs on ReadPort as a whole: whose window an address lies in, who gets a beat, and the port's handshakes.

The rules (`nearkv_sim.formal.axi`) look at the port and its commands alone. Windows and commands may change
in every cycle; the memory is free, beats that nobody asked for included. Where addresses are searched the
two readers are small: 32 bytes of memory, bursts of two beats, two under way, queues of four beats.
"""

from functools import partial

import pytest

from nearkv_hdl.bus.axi import axi_read
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.stream.contract import OrderWatch
from nearkv_hdl.top import read_port
from nearkv_hdl.top.read_port import KEYS, LISTS, ReadPort
from nearkv_sim.formal import Bench, Status, prove, prove_stream_contract
from nearkv_sim.formal.axi import altered, assert_block, assert_handshake, assert_window, handshakes_behind

BUS_BYTES, ADDRESS_BITS, BURST_BEATS, DEPTH = 4, 5, 2, 4
WHOLE_BUS_BYTES = 8
BOUND_CYCLES = 16
MEMORIES = ("$mem_v2",)  # what queues hold never reaches an address
MASTERS = {"keys": KEYS, "lists": LISTS}


@pytest.fixture
def small(monkeypatch):
    """Makes a ReadPort of small readers."""

    def reader(bus_bytes, **_):
        return AxiReader(bus_bytes, BURST_BEATS, 2, DEPTH, ADDRESS_BITS, ADDRESS_BITS - 1)

    monkeypatch.setattr(read_port, "AxiReader", reader)
    monkeypatch.setattr(read_port, "axi_read", lambda _, bus_bytes: axi_read(ADDRESS_BITS, bus_bytes))
    return partial(ReadPort, BUS_BYTES)


def status_of(bench, **options):
    return prove(bench.module, bench.free, **options).status


def window_bench(port, which, bus):
    bench = Bench(port)
    command = getattr(port, f"{which}_command")
    assert_window(
        bench,
        bus,
        "ar",
        BUS_BYTES,
        taken=command.valid & command.ready,
        base=getattr(port, f"{which}_window_base"),
        nbytes=getattr(port, f"{which}_window_bytes"),
        identifier=MASTERS[which],
    )
    return bench


@pytest.mark.parametrize("which", MASTERS)
def test_addresses_lie_in_the_windows_of_their_identifier(small, which):
    port = small()
    assert status_of(window_bench(port, which, port.m_axi), cut=MEMORIES) is Status.PROVED
    for broken in ("arid", "araddr", "arlen"):
        port = small()
        bus = port.m_axi
        values = {"arid": ~bus.arid, "araddr": bus.araddr + BUS_BYTES, "arlen": bus.arlen + 1}
        bench = window_bench(port, which, altered(bus, **{broken: values[broken]}))
        assert status_of(bench, cut=MEMORIES) is Status.REFUTED


def block_bench(port, bus):
    bench = Bench(port)
    assert_block(bench, bus, "ar", BUS_BYTES, BURST_BEATS)
    return bench


def test_bursts_stay_in_their_block(small):
    port = small()
    assert status_of(block_bench(port, port.m_axi), cut=MEMORIES) is Status.PROVED
    port = small()
    bus = altered(port.m_axi, arlen=port.m_axi.arlen + 1)
    assert status_of(block_bench(port, bus), cut=MEMORIES) is Status.REFUTED


def handshake_bench(port, bus):
    bench = Bench(port)
    assert_handshake(bench, bus, "ar")
    return bench


def test_an_address_offered_stays_till_it_is_taken():
    port = ReadPort(WHOLE_BUS_BYTES)
    assert status_of(handshake_bench(port, port.m_axi), cut=MEMORIES) is Status.PROVED
    # Lists first, even if keys are being offered: a multiplexer that does not remember.
    port = ReadPort(WHOLE_BUS_BYTES)
    keys, lists = (port._readers[which].m_axi for which in MASTERS)
    bus = altered(port.m_axi, arid=lists.arvalid, arvalid=keys.arvalid | lists.arvalid)
    assert status_of(handshake_bench(port, bus), cut=MEMORIES) is Status.REFUTED


def test_no_valid_waits_for_a_ready():
    proof = prove_stream_contract(partial(ReadPort, WHOLE_BUS_BYTES), cut=MEMORIES)
    assert proof.status is Status.PROVED, proof.message
    port = ReadPort(WHOLE_BUS_BYTES)
    assert handshakes_behind(Bench(port), port.m_axi.arvalid) == set()
    port = ReadPort(WHOLE_BUS_BYTES)
    assert handshakes_behind(Bench(port), port.m_axi.arvalid & port.m_axi.arready) == {"m_axi__arready"}


def delivery_bench(port, which, bus):
    """Beats leave for a reader in the order in which those of its identifier came, each once, unchanged."""
    bench = Bench(port)
    data = getattr(port, f"{which}_data")
    bench.add(
        "order",
        OrderWatch(len(bus.rdata), DEPTH),
        enters=bus.rvalid & bus.rready & (bus.rid == MASTERS[which]),
        entering=bus.rdata,
        leaves=data.valid & data.ready,
        leaving=data.payload.data,
        chosen=bench.free_signal("chosen"),
    )
    return bench


@pytest.mark.parametrize("which", MASTERS)
def test_beats_go_to_the_reader_of_their_identifier(small, which):
    port = small()
    bench = delivery_bench(port, which, port.m_axi)
    assert status_of(bench, bound=BOUND_CYCLES) is Status.BOUNDED
    port = small()
    bench = delivery_bench(port, which, altered(port.m_axi, rid=~port.m_axi.rid))
    assert status_of(bench, bound=BOUND_CYCLES) is Status.REFUTED
