"""The shared stream pieces keep the contract, pass every token on in order and never hang: proofs."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.stream.contract import OrderWatch, ProgressWatch, TokenCount
from nearkv_hdl.stream.credit import CreditBuffer
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.skid import SkidBuffer
from nearkv_sim.formal import (
    Bench,
    Status,
    prove,
    prove_order,
    prove_progress,
    prove_ready_independent,
    prove_stream_contract,
)
from nearkv_sim.formal.engine import gate_paths

WIDTH = 4


class Pipe(wiring.Component):
    """`latency` registers behind PipelineControl."""

    def __init__(self, latency):
        self.latency = latency
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.control = control = PipelineControl(self.latency)
        m.d.comb += [
            control.i_valid.eq(self.i.valid),
            self.i.ready.eq(control.i_ready),
            self.o.valid.eq(control.o_valid),
            control.o_ready.eq(self.o.ready),
        ]
        rank = self.i.payload
        for index in range(self.latency):
            register = Signal(WIDTH, name=f"rank{index}", reset_less=True)
            with m.If(control.enable):
                m.d.sync += register.eq(rank)
            rank = register
        m.d.comb += self.o.payload.eq(rank)
        return m


class FreeRunning(wiring.Component):
    """`latency` registers that never stop, behind CreditBuffer."""

    def __init__(self, latency):
        self.buffer = CreditBuffer(WIDTH, latency)
        self.ranks = latency
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.buffer = self.buffer
        rank = self.i.payload
        for index in range(self.ranks):
            register = Signal(WIDTH, name=f"rank{index}", reset_less=True)
            m.d.sync += register.eq(rank)
            rank = register
        m.d.comb += [
            self.buffer.i_valid.eq(self.i.valid),
            self.i.ready.eq(self.buffer.i_ready),
            self.buffer.result.eq(rank),
        ]
        wiring.connect(m, self.buffer.o, wiring.flipped(self.o))
        return m


@dataclass(frozen=True)
class Piece:
    """A stream piece, the tokens it holds, and the cycles an empty one takes to raise valid."""

    make: Callable
    capacity: int
    latency: int


PIECES = {
    "skid": Piece(lambda: SkidBuffer(WIDTH), 2, 1),
    "pipeline of 1": Piece(lambda: Pipe(1), 1, 1),
    "pipeline of 4": Piece(lambda: Pipe(4), 4, 4),
    "credits over 1": Piece(lambda: FreeRunning(1), 4, 3),
    "credits over 3": Piece(lambda: FreeRunning(3), 6, 5),
}


@pytest.fixture(params=PIECES.values(), ids=PIECES.keys())
def piece(request):
    return request.param


def test_contract(piece):
    assert prove_stream_contract(piece.make).status is Status.PROVED


def test_progress_within_the_latency(piece):
    proof = prove_progress(piece.make, within=piece.latency, capacity=piece.capacity)
    assert proof.status is Status.PROVED


def test_tighter_bounds_are_refuted(piece):
    proof = prove_progress(piece.make, within=piece.latency - 1, capacity=piece.capacity)
    assert proof.status is Status.REFUTED
    if piece.capacity > 1:
        proof = prove_progress(piece.make, within=piece.latency, capacity=piece.capacity - 1)
        assert proof.status is Status.REFUTED


def test_order(piece):
    # An invariant over a buffer's pointers takes minutes to find beyond 4 entries; 15 cycles fill and
    # empty 6 entries.
    bound = None if piece.capacity <= 4 else 15
    proof = prove_order(piece.make, capacity=piece.capacity, bound=bound)
    assert proof.status is (Status.PROVED if bound is None else Status.BOUNDED)


def test_skid_cuts_the_ready_path_and_the_pipeline_does_not():
    for make, path in (
        (lambda: SkidBuffer(WIDTH), False),
        (lambda: Pipe(2), True),
        (lambda: FreeRunning(1), False),
    ):
        bench = Bench(make())
        ports = [*bench.free.values(), *bench.observed.values()]
        found = gate_paths(bench.module, ports, ["i_ready"], ["o_ready"])
        assert found == ({("i_ready", "o_ready")} if path else set())


class TakesWhatItSees(wiring.Component):
    """A wire that is ready only once it sees a token offered."""

    def __init__(self):
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += [
            self.o.valid.eq(self.i.valid),
            self.o.payload.eq(self.i.payload),
            self.i.ready.eq(self.i.valid & self.o.ready),
        ]
        return m


def test_no_ready_waits_for_a_valid(piece):
    assert prove_ready_independent(piece.make).status is Status.PROVED


def test_a_ready_that_waits_is_found():
    proof = prove_ready_independent(TakesWhatItSees)
    assert proof.status is Status.REFUTED
    assert "ready waits for valid: i.ready depends on i.valid" in proof.message


def test_bounded_run_says_so():
    proof = prove_order(lambda: SkidBuffer(WIDTH), capacity=2, bound=12)
    assert proof.status is Status.BOUNDED
    assert proof.cycles == 12


def test_arguments_are_refused():
    with pytest.raises(ValueError, match="latency is 0; allowed: from 1"):
        PipelineControl(0)
    with pytest.raises(ValueError, match="latency is 0; allowed: from 1"):
        CreditBuffer(WIDTH, 0)
    with pytest.raises(ValueError, match="depth is 5 with latency 3; allowed: from 6"):
        CreditBuffer(WIDTH, 3, depth=5)
    with pytest.raises(ValueError, match="within is -1; allowed: from 0"):
        ProgressWatch(-1, "x")
    with pytest.raises(ValueError, match="capacity is 0; allowed: from 1"):
        TokenCount(0)
    with pytest.raises(ValueError, match="capacity is 0; allowed: from 1"):
        OrderWatch(WIDTH, 0)
    with pytest.raises(ValueError, match="output stream is 'x'; allowed: o"):
        Bench(SkidBuffer(WIDTH)).output("x")
    with pytest.raises(ValueError, match="PipelineControl has no streams"):
        Bench(PipelineControl(1))
    bench = Bench(SkidBuffer(WIDTH))
    with pytest.raises(ValueError, match="bound is 0; allowed: from 1"):
        prove(bench.module, bench.free, bound=0)
