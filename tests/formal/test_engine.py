"""The proof engine itself: constant properties, designs without registers, free initial values, refusals."""

import pytest
from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib.memory import Memory

from nearkv_hdl.stream.contract import StreamContract
from nearkv_hdl.stream.skid import SkidBuffer
from nearkv_sim.formal import Bench, Status, prove
from nearkv_sim.formal.engine import FormalError


def test_constant_properties_and_designs_without_registers_are_decided():
    def module(condition):
        m = Module()
        m.d.comb += Assert(condition)
        return m

    free = Signal(4, name="free")
    for bound in (None, 5):
        assert prove(module(free == free), {"free": free}, bound=bound).status is Status.PROVED
        (cycle,) = prove(module(free != 7), {"free": free}, bound=bound).counterexample
        assert cycle["free"] == 7
        assert prove(module(free != free), {"free": free}, bound=bound).status is Status.REFUTED


def test_a_breach_beside_a_register_of_free_initial_value_is_read():
    # A memory's read register has no initial value, of which ABC's map of inputs has a line of its own.
    m = Module()
    m.submodules.rows = rows = Memory(shape=4, depth=4, init=[])
    write, read = rows.write_port(), rows.read_port()
    free = {"row": Signal(2, name="row"), "data": Signal(4, name="data")}
    m.d.comb += [write.addr.eq(free["row"]), write.data.eq(free["data"]), write.en.eq(1)]
    m.d.comb += read.addr.eq(free["row"])
    started = Signal(2)
    m.d.sync += started.eq(Mux(started == 3, 3, started + 1))
    with m.If(started == 3):
        m.d.sync += Assert(read.data != 7)
    proof = prove(m, free)
    assert proof.status is Status.REFUTED
    assert any(cycle["data"] == 7 for cycle in proof.counterexample)
    assert all(set(cycle) == {*free, "rst"} for cycle in proof.counterexample)


def test_a_bench_without_assertions_proves_nothing():
    bench = Bench(SkidBuffer(4))
    with pytest.raises(FormalError, match="asserts nothing"):
        prove(bench.module, bench.free)


def test_free_sources_keep_the_contract():
    bench = Bench(SkidBuffer(4))
    port = bench.input(None).port
    bench.add("source", StreamContract(4), valid=port.valid, ready=port.ready, payload=port.payload)
    assert prove(bench.module, bench.free).status is Status.PROVED
