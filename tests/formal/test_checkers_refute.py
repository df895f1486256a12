"""The checkers find every broken rule: each source here breaks one, and is refuted for that one."""

import pytest
from amaranth.hdl import Assume, Module, Mux, ResetSignal, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.stream.contract import TokenCount
from nearkv_sim.formal import (
    Bench,
    Status,
    prove,
    prove_no_deadlock,
    prove_order,
    prove_progress,
    prove_stream_contract,
)

WIDTH = 4


class _Stage(wiring.Component):
    def __init__(self):
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})


class DropsValid(_Stage):
    """A register that forgets its token if it is not taken at once."""

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += self.i.ready.eq(1)
        m.d.sync += [self.o.valid.eq(self.i.valid), self.o.payload.eq(self.i.payload)]
        return m


class ChangesPayload(_Stage):
    """A register that takes the next payload while the last still waits."""

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += self.i.ready.eq(1)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(self.i.payload)]
        return m


class ValidWaitsForReadyByGates(_Stage):
    """Raises valid only in cycles in which the sink is ready, through a gate."""

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += [
            self.i.ready.eq(self.o.ready),
            self.o.valid.eq(self.i.valid & self.o.ready),
            self.o.payload.eq(self.i.payload),
        ]
        return m


class ValidWaitsForReadyOverTime(_Stage):
    """Raises valid only after it has seen the sink ready; keeps every other rule."""

    def elaborate(self, _platform):
        m = Module()
        full = Signal()
        m.d.comb += self.i.ready.eq(~full)
        with m.If(self.i.valid & ~full):
            m.d.sync += [full.eq(1), self.o.payload.eq(self.i.payload)]
        with m.If(full & self.o.ready):
            m.d.sync += self.o.valid.eq(1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [self.o.valid.eq(0), full.eq(0)]
        return m


class Hangs(_Stage):
    """A register that stops for good once it has been stalled for three cycles running."""

    def elaborate(self, _platform):
        m = Module()
        stalled = Signal(range(4))
        dead = Signal()
        m.d.comb += self.i.ready.eq((~self.o.valid | self.o.ready) & ~dead)
        with m.If(self.o.valid & ~self.o.ready):
            m.d.sync += stalled.eq(Mux(stalled == 3, 3, stalled + 1))
        with m.Else():
            m.d.sync += stalled.eq(0)
        with m.If(stalled == 3):
            m.d.sync += dead.eq(1)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(self.i.payload)]
        return m


class Repeats(_Stage):
    """A register that sends the payload 5 twice."""

    def elaborate(self, _platform):
        m = Module()
        again = Signal()
        m.d.comb += self.i.ready.eq(~self.o.valid)
        with m.If(self.i.valid & ~self.o.valid):
            m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(self.i.payload), again.eq(self.i.payload == 5)]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [self.o.valid.eq(again), again.eq(0)]
        return m


class Swaps(_Stage):
    """A buffer of two registers that lets a token overtake the one that waits."""

    def elaborate(self, _platform):
        m = Module()
        front, back = Signal(WIDTH), Signal(WIDTH)
        front_valid, back_valid = Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(~back_valid | self.o.ready),
            self.o.valid.eq(front_valid),
            self.o.payload.eq(front),
        ]
        with m.If(self.o.ready | ~front_valid):
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += [front.eq(self.i.payload), front_valid.eq(1)]
            with m.Else():
                m.d.sync += [front.eq(back), front_valid.eq(back_valid), back_valid.eq(0)]
        with m.Elif(self.i.valid & ~back_valid):
            m.d.sync += [back.eq(self.i.payload), back_valid.eq(1)]
        return m


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (DropsValid, "valid held"),
        (ChangesPayload, "payload stable"),
        (ValidWaitsForReadyByGates, "valid"),
    ],
)
def test_contract_is_refuted_on_broken_sources(source, rule):
    proof = prove_stream_contract(source)
    assert proof.status is Status.REFUTED
    assert rule in proof.message


def test_valid_behind_a_gate_is_found_where_the_held_rule_cannot_see_it():
    # valid = token | ready: never withdrawn, yet a function of ready.
    class Eager(_Stage):
        def elaborate(self, _platform):
            m = Module()
            offered = Signal()
            m.d.sync += offered.eq(1)
            m.d.comb += self.o.valid.eq(offered | self.o.ready)
            return m

    proof = prove_stream_contract(Eager)
    assert proof.status is Status.REFUTED
    assert "o.valid depends on o.ready" in proof.message


def test_waiting_over_time_passes_the_contract_and_fails_progress():
    assert prove_stream_contract(ValidWaitsForReadyOverTime).status is Status.PROVED
    proof = prove_progress(ValidWaitsForReadyOverTime, within=8, capacity=1)
    assert proof.status is Status.REFUTED
    assert "o.valid within 8 cycles" in proof.message


def test_a_hang_under_one_pause_pattern_is_found():
    assert prove_stream_contract(Hangs)
    proof = prove_progress(Hangs, within=6, capacity=1)
    assert proof.status is Status.REFUTED
    assert "i taken" in proof.message or "o.valid" in proof.message


def test_a_hang_is_found_with_every_neighbour_willing():
    assert prove_no_deadlock(Swaps, within=1).status is Status.PROVED
    proof = prove_no_deadlock(Hangs, within=4)
    assert proof.status is Status.REFUTED
    assert "a transfer on some stream within 4 cycles" in proof.message


@pytest.mark.parametrize("stage", [Repeats, Swaps, DropsValid, ChangesPayload])
def test_order_is_refuted_on_stages_that_lose_repeat_or_swap(stage):
    proof = prove_order(stage, capacity=2)
    assert proof.status is Status.REFUTED
    assert "order" in proof.message or "tokens" in proof.message


def test_a_counterexample_replays_to_the_broken_rule_and_writes_a_waveform(tmp_path):
    def build():
        bench = Bench(Repeats())
        bench.add(
            "tokens",
            TokenCount(1),
            enters=bench.input(None).transfers,
            leaves=bench.output(None).transfers,
        )
        return bench

    bench = build()
    proof = prove(bench.module, bench.free)
    assert len(proof.counterexample) == proof.cycles
    assert set(proof.counterexample[0]) == {"i_valid", "i_payload", "o_ready", "rst"}
    assert any(cycle["i_payload"] == 5 and cycle["i_valid"] for cycle in proof.counterexample)
    waveform = tmp_path / "trace.vcd"
    assert "tokens: one left that never entered" in build().replay(proof, str(waveform))
    assert "i_payload" in waveform.read_text()


def test_a_breach_that_needs_a_reset_is_replayed():
    class ForgetsOnlyAfterReset(_Stage):
        """Drops its token if it has ever been reset."""

        def elaborate(self, _platform):
            m = Module()
            powered_up = Signal(init=1, reset_less=True)
            m.d.sync += powered_up.eq(powered_up & ~ResetSignal())
            m.d.comb += self.i.ready.eq(~self.o.valid)
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += [self.o.valid.eq(1), self.o.payload.eq(self.i.payload)]
            with m.Elif(self.o.ready | ~powered_up):
                m.d.sync += self.o.valid.eq(0)
            return m

    proof = prove_stream_contract(ForgetsOnlyAfterReset)
    assert proof.status is Status.REFUTED
    assert "valid held" in proof.message
    assert any(cycle["rst"] for cycle in proof.counterexample)


def test_assumptions_on_inputs_are_honoured():
    def never_five(m, component, _bench):
        m.d.sync += Assume(component.i.payload != 5)

    def make_bench(constrain):
        bench = Bench(Repeats(), constrain)
        sink = bench.output(None)
        bench.add("tokens", TokenCount(1), enters=bench.input(None).transfers, leaves=sink.transfers)
        return prove(bench.module, bench.free)

    assert make_bench(None).status is Status.REFUTED
    assert make_bench(never_five).status is Status.PROVED
