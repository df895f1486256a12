"""AXI reader and writer against a foreign memory model, at full rate against a slow one, and in proofs."""

import pytest
from amaranth.hdl import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read, axi_write
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCH = "nearkv_sim.benches.axi_bench"


class ReadWritePort(wiring.Component):
    """A reader and a writer that share a port."""

    def __init__(self, bus_bytes):
        self.reader = AxiReader(bus_bytes, outstanding=4, depth=40)
        self.writer = AxiWriter(bus_bytes, outstanding=3)
        ports = {**axi_read(64, bus_bytes).members, **axi_write(64, bus_bytes).members}
        reader, writer = self.reader.signature.members, self.writer.signature.members
        super().__init__(
            {
                "read": reader["i_command"],
                "write": writer["i_command"],
                "read_window_base": In(64),
                "read_window_bytes": In(64),
                "write_window_base": In(64),
                "write_window_bytes": In(64),
                "data_in": writer["i_data"],
                "data_out": reader["o_data"],
                "read_status": reader["o_status"],
                "write_status": writer["o_status"],
                "m_axi": Out(wiring.Signature(ports)),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.reader = reader = self.reader
        m.submodules.writer = writer = self.writer
        wiring.connect(m, wiring.flipped(self.read), reader.i_command)
        wiring.connect(m, wiring.flipped(self.write), writer.i_command)
        wiring.connect(m, wiring.flipped(self.data_in), writer.i_data)
        wiring.connect(m, reader.o_data, wiring.flipped(self.data_out))
        wiring.connect(m, reader.o_status, wiring.flipped(self.read_status))
        wiring.connect(m, writer.o_status, wiring.flipped(self.write_status))
        m.d.comb += [
            reader.window_base.eq(self.read_window_base),
            reader.window_bytes.eq(self.read_window_bytes),
            writer.window_base.eq(self.write_window_base),
            writer.window_bytes.eq(self.write_window_bytes),
        ]
        for unit in (reader, writer):
            for name, member in unit.m_axi.signature.members.items():
                ours, theirs = getattr(self.m_axi, name), getattr(unit.m_axi, name)
                sink, source = (ours, theirs) if member.flow is Out else (theirs, ours)
                m.d.comb += Value.cast(sink).eq(source)
        return m


# The wide bus where it simulates fastest; the narrow one, where every case is tried, on another simulator.
RUNS = list(zip((64, 8), (available_simulators() * 2)[:2], strict=False))


@pytest.mark.parametrize(("bus_bytes", "simulator"), RUNS)
def test_against_a_memory_model(bus_bytes, simulator):
    result = run_bench(
        ReadWritePort(bus_bytes),
        BENCH,
        name=f"axi-port-{bus_bytes}",
        simulator=simulator,
        seed=21,
        parameters={"bus_bytes": bus_bytes, "full": bus_bytes == 8},
    )
    assert len(result.passed) == 6
