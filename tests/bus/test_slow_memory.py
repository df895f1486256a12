"""The reader at full rate against a memory of 200 cycles' latency, compiled; latencies to the cycle."""

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import fifo, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read, axi_write
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_sim.cosim.compiled import CompiledComponent
from nearkv_sim.cosim.stalls import Stalls

BUS_BYTES = 64
LATENCY_CYCLES = 200  # from an address to the first beat
LANE_BITS = 6


class SlowMemory(wiring.Component):
    """Answers bursts in order, each no sooner than LATENCY_CYCLES after its address, a beat per cycle.

    A beat holds its own word address in every 64 bits. Counts the beats that were offered and not taken.
    """

    def __init__(self):
        super().__init__({"bus": In(axi_read(64, BUS_BYTES)), "refused": Out(1)})

    def elaborate(self, _platform):
        m = Module()
        bus = self.bus
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=64 + 8 + 32, depth=64)
        now = Signal(32)
        m.d.sync += now.eq(now + 1)
        m.d.comb += [
            bus.arready.eq(queue.w_rdy),
            queue.w_en.eq(bus.arvalid),
            queue.w_data.eq(Cat(bus.araddr, bus.arlen, now)),
        ]
        address, length, since = queue.r_data[:64], queue.r_data[64:72], queue.r_data[72:]
        index = Signal(8)
        m.d.comb += [
            bus.rvalid.eq(queue.r_rdy & (now - since >= LATENCY_CYCLES)),
            bus.rlast.eq(index == length),
            bus.rdata.eq(((address >> LANE_BITS) + index)[:64].replicate(BUS_BYTES // 8)),
            queue.r_en.eq(bus.rvalid & bus.rready & bus.rlast),
            self.refused.eq(bus.rvalid & ~bus.rready),
        ]
        with m.If(bus.rvalid & bus.rready):
            m.d.sync += index.eq(index + 1)
            with m.If(bus.rlast):
                m.d.sync += index.eq(0)
        return m


class PromptSink(wiring.Component):
    """Takes every address and beat, answers each burst a cycle after its last beat."""

    def __init__(self):
        super().__init__({"bus": In(axi_write(64, BUS_BYTES))})

    def elaborate(self, _platform):
        m = Module()
        bus = self.bus
        owed = Signal(16)
        m.d.comb += [bus.awready.eq(1), bus.wready.eq(1), bus.bvalid.eq(owed != 0)]
        m.d.sync += owed.eq(owed + (bus.wvalid & bus.wlast) - (bus.bvalid & bus.bready))
        return m


class Port(wiring.Component):
    """Reader and writer with their memories, windows of 1 GiB."""

    def __init__(self):
        self.reader, self.writer = AxiReader(BUS_BYTES), AxiWriter(BUS_BYTES)
        reader, writer = self.reader.signature.members, self.writer.signature.members
        flags = ("arvalid", "rvalid", "refused", "awvalid", "wvalid", "bvalid")
        super().__init__(
            {
                "i_read": reader["i_command"],
                "o_data": reader["o_data"],
                "o_read_status": reader["o_status"],
                "i_write": writer["i_command"],
                "i_data": writer["i_data"],
                "o_write_status": writer["o_status"],
                **{flag: Out(1) for flag in flags},
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.reader = reader = self.reader
        m.submodules.writer = writer = self.writer
        m.submodules.memory = memory = SlowMemory()
        m.submodules.sink = sink = PromptSink()
        wiring.connect(m, wiring.flipped(self.i_read), reader.i_command)
        wiring.connect(m, wiring.flipped(self.i_write), writer.i_command)
        wiring.connect(m, wiring.flipped(self.i_data), writer.i_data)
        wiring.connect(m, reader.o_data, wiring.flipped(self.o_data))
        wiring.connect(m, reader.o_status, wiring.flipped(self.o_read_status))
        wiring.connect(m, writer.o_status, wiring.flipped(self.o_write_status))
        wiring.connect(m, reader.m_axi, memory.bus)
        wiring.connect(m, writer.m_axi, sink.bus)
        for unit in (reader, writer):
            m.d.comb += unit.window_bytes.eq(1 << 30)
        m.d.comb += [
            self.arvalid.eq(reader.m_axi.arvalid),
            self.rvalid.eq(reader.m_axi.rvalid),
            self.refused.eq(memory.refused),
            self.awvalid.eq(writer.m_axi.awvalid),
            self.wvalid.eq(writer.m_axi.wvalid),
            self.bvalid.eq(writer.m_axi.bvalid),
        ]
        return m


@pytest.fixture(scope="module")
def port():
    return CompiledComponent(Port(), name="axi-slow-memory")


def words_of(layout, values):
    """Payloads as uint32 [tokens, words]."""
    packed = [int(layout.const(value).as_value().value) for value in values]
    words = -(-layout.size // 32)
    return np.array(
        [[value >> 32 * word & 0xFFFF_FFFF for word in range(words)] for value in packed], np.uint32
    )


def commands(*pairs):
    return words_of(command_layout(64, 32), [{"address": a, "bytes": n} for a, n in pairs])


def check_beats(run, addresses):
    """Every beat holds its word address, all lanes kept."""
    beats = run.outputs["o_data"]
    found = beats[:, :16].copy().view("<u8")
    np.testing.assert_array_equal(found, np.repeat(np.asarray(addresses)[:, None] >> LANE_BITS, 8, axis=1))
    assert (beats[:, 16:18] == 0xFFFF_FFFF).all()
    assert not run.outputs["o_read_status"].any()


@pytest.mark.parametrize("transfer_bytes", [1 << 20, 8192, 1024, 64])
def test_the_read_channel_is_busy(port, transfer_bytes):
    """A stream of 1 MiB, in one command or in many: of the cycles from the first address, 95 % carry data."""
    port.reset()
    total = 1 << 20 if transfer_bytes >= 1024 else 1 << 11
    addresses = np.arange(0, total, BUS_BYTES)
    run = port.run(
        {"i_read": commands(*((at, transfer_bytes) for at in range(0, total, transfer_bytes)))},
        {"o_data": len(addresses), "o_read_status": total // transfer_bytes},
    )
    check_beats(run, addresses)
    busy = run.flags["rvalid"]
    assert busy.high_cycles == len(addresses)
    assert run.flags["refused"].high_cycles == 0
    if total == 1 << 20:
        cycles = busy.last_high_cycle - run.flags["arvalid"].first_high_cycle + 1
        assert len(addresses) / cycles >= 0.95
    # Once it has begun, nothing interrupts it.
    assert busy.last_high_cycle - busy.first_high_cycle + 1 == busy.high_cycles


@pytest.mark.parametrize("pause", [0.3, 0.9])
def test_a_slow_consumer_never_stalls_the_bus(port, pause):
    port.reset()
    addresses = np.arange(4096, 4096 + (1 << 17), BUS_BYTES)
    run = port.run(
        {"i_read": commands((4096, 1 << 17))},
        {"o_data": len(addresses), "o_read_status": 1},
        stalls=Stalls(seed=4, input_probability=0, output_probability=pause, mean_burst_cycles=700),
    )
    check_beats(run, addresses)
    assert run.flags["refused"].high_cycles == 0


def test_read_latencies(port):
    port.reset()
    run = port.run({"i_read": commands((0, 256))}, {"o_data": 4, "o_read_status": 1})
    reader, beats, status = AxiReader(BUS_BYTES), run.ports["o_data"], run.ports["o_read_status"]
    taken, busy = run.ports["i_read"].first_cycle, run.flags["rvalid"]
    assert run.flags["arvalid"].first_high_cycle - taken == reader.latency
    assert beats.first_cycle - busy.first_high_cycle == reader.data_latency
    assert beats.last_cycle - beats.first_cycle == 3 * reader.interval
    assert status.first_cycle - busy.last_high_cycle == reader.data_latency


def test_refused_commands_cost_the_bus_nothing_but_their_cycle(port):
    port.reset()
    pairs = [(0, 4096), (1 << 30, 1), (4096, 0), (8192, 4096)]
    addresses = [*range(0, 4096, BUS_BYTES), *range(8192, 12288, BUS_BYTES)]
    run = port.run({"i_read": commands(*pairs)}, {"o_data": len(addresses), "o_read_status": 4})
    refused = {"code": TransferCode.WINDOW, "address": 1 << 30}
    fine = {"code": TransferCode.OKAY, "address": 0}
    expected = words_of(status_layout(64), [fine, refused, fine, fine])
    np.testing.assert_array_equal(run.outputs["o_read_status"], expected)
    assert run.flags["refused"].high_cycles <= 2


def test_write_rate_and_latencies(port):
    port.reset()
    writer = AxiWriter(BUS_BYTES)
    for pairs in ([(0, 1 << 16)], [(at, 64) for at in range(0, 1 << 16, 64)]):
        beats = np.random.default_rng(5).integers(0, 1 << 32, (1024, 16), dtype=np.uint32)
        run = port.run({"i_write": commands(*pairs), "i_data": beats}, {"o_write_status": len(pairs)})
        assert not run.outputs["o_write_status"].any()
        busy, source = run.flags["wvalid"], run.ports["i_data"]
        assert busy.high_cycles == len(beats)
        assert busy.last_high_cycle - busy.first_high_cycle + 1 == len(beats) * writer.interval
        assert busy.first_high_cycle - source.first_cycle == writer.data_latency
        assert run.flags["awvalid"].first_high_cycle - run.ports["i_write"].first_cycle == writer.latency
        ended = run.ports["o_write_status"].last_cycle - run.flags["bvalid"].last_high_cycle
        assert ended == writer.status_latency
