"""Stream pieces in compiled RTL: order, rate, latency and room, with and without pauses."""

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from nearkv_hdl.stream.contract import ProgressWatch, StreamContract, TokenCount
from nearkv_hdl.stream.credit import CreditBuffer
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.skid import SkidBuffer
from nearkv_sim.cosim.compiled import CompiledComponent
from nearkv_sim.cosim.stalls import Stalls

WIDTH = 20


class Pipe(wiring.Component):
    """`ranks` registers that add 1 each, behind PipelineControl."""

    def __init__(self, ranks):
        self.control = PipelineControl(ranks)
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.control = control = self.control
        value = self.i.payload
        for rank in range(control.latency):
            register = Signal(WIDTH, name=f"rank{rank}", reset_less=True)
            with m.If(control.enable):
                m.d.sync += register.eq(value + 1)
            value = register
        m.d.comb += [
            control.i_valid.eq(self.i.valid),
            self.i.ready.eq(control.i_ready),
            self.o.valid.eq(control.o_valid),
            control.o_ready.eq(self.o.ready),
            self.o.payload.eq(value),
        ]
        return m


class FreeRunning(wiring.Component):
    """`ranks` registers without enable that add 1 each, behind CreditBuffer."""

    def __init__(self, ranks, depth=None):
        self.ranks = ranks
        self.control = CreditBuffer(WIDTH, ranks, depth)
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.control = control = self.control
        value = self.i.payload
        for rank in range(self.ranks):
            register = Signal(WIDTH, name=f"rank{rank}", reset_less=True)
            m.d.sync += register.eq(value + 1)
            value = register
        m.d.comb += [
            control.i_valid.eq(self.i.valid),
            self.i.ready.eq(control.i_ready),
            control.result.eq(value),
        ]
        wiring.connect(m, control.o, wiring.flipped(self.o))
        return m


# name: component, what it adds to a token, its flow control
PIECES = {
    "skid": (lambda: SkidBuffer(WIDTH), 0, SkidBuffer(WIDTH)),
    "pipe1": (lambda: Pipe(1), 1, PipelineControl(1)),
    "pipe5": (lambda: Pipe(5), 5, PipelineControl(5)),
    "credit1": (lambda: FreeRunning(1), 1, CreditBuffer(WIDTH, 1)),
    "credit9": (lambda: FreeRunning(9), 9, CreditBuffer(WIDTH, 9)),
    "deep": (lambda: FreeRunning(2, depth=16), 2, CreditBuffer(WIDTH, 2, 16)),
}


class Bank(wiring.Component):
    """All pieces side by side, so that they are compiled once."""

    def __init__(self):
        self.pieces = {name: make() for name, (make, _, _) in PIECES.items()}
        members = {}
        for name in PIECES:
            members[f"i_{name}"] = In(stream.Signature(WIDTH))
            members[f"o_{name}"] = Out(stream.Signature(WIDTH))
        super().__init__(members)

    def elaborate(self, _platform):
        m = Module()
        for name, piece in self.pieces.items():
            m.submodules[name] = piece
            wiring.connect(m, wiring.flipped(getattr(self, f"i_{name}")), piece.i)
            wiring.connect(m, piece.o, wiring.flipped(getattr(self, f"o_{name}")))
        return m


@pytest.fixture(scope="module")
def bank():
    return CompiledComponent(Bank(), name="stream-pieces")


@pytest.fixture(params=PIECES)
def piece(request):
    return request.param


def send(bank, piece, tokens, stalls=None):
    beats = np.asarray(tokens, dtype=np.uint32)[:, None]
    run = bank.run({f"i_{piece}": beats}, {f"o_{piece}": len(beats)}, stalls=stalls, drain_cycles=50)
    return run.outputs[f"o_{piece}"][:, 0], run


def test_three_tokens_by_hand(bank, piece):
    received, _ = send(bank, piece, [7, 100, 3])
    added = PIECES[piece][1]
    assert list(received) == [7 + added, 100 + added, 3 + added]


def test_full_rate_and_latency(bank, piece):
    flow = PIECES[piece][2]
    for count in (1, 2, 300):
        _, run = send(bank, piece, range(count))
        source, sink = run.ports[f"i_{piece}"], run.ports[f"o_{piece}"]
        assert sink.first_cycle - source.first_cycle == flow.latency
        assert sink.last_cycle - sink.first_cycle == (count - 1) * flow.interval
        assert source.blocked_cycles == 0


@pytest.mark.parametrize("burst", [None, 12])
@pytest.mark.parametrize(("source", "sink"), [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
def test_pauses_change_nothing_but_time(bank, piece, source, sink, burst):
    tokens = np.random.default_rng(1).integers(0, 1 << (WIDTH - 1), 2000)
    stalls = Stalls(seed=2, input_probability=source, output_probability=sink, mean_burst_cycles=burst)
    received, _ = send(bank, piece, tokens, stalls)
    np.testing.assert_array_equal(received, tokens + PIECES[piece][1])


def test_holds_as_many_tokens_as_it_says(bank, piece):
    _, added, flow = PIECES[piece]
    beats = np.arange(flow.capacity + 5, dtype=np.uint32)[:, None]
    run = bank.run({f"i_{piece}": beats[: flow.capacity]}, {}, max_idle_cycles=200)
    assert run.ports[f"i_{piece}"].transfers == flow.capacity
    # A further token is taken only once one has left.
    rest = {f"i_{piece}": beats[flow.capacity :]}
    run = bank.run(rest, {f"o_{piece}": len(beats)}, drain_cycles=50)
    np.testing.assert_array_equal(run.outputs[f"o_{piece}"][:, 0], np.arange(len(beats)) + added)
    assert run.ports[f"i_{piece}"].first_cycle >= run.ports[f"o_{piece}"].first_cycle


def simulate(checker, cycles):
    """Drive a checker with one mapping of its inputs per cycle; a breach raises."""

    async def drive(ctx):
        for cycle in cycles:
            for name, value in cycle.items():
                ctx.set(getattr(checker, name), value)
            await ctx.tick()

    simulator = Simulator(checker)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    simulator.run()


def cycle(valid, ready, payload):
    return {"valid": valid, "ready": ready, "payload": payload}


def test_contract_passes_what_is_allowed():
    simulate(
        StreamContract(8), [cycle(1, 0, 5), cycle(1, 0, 5), cycle(1, 1, 5), cycle(0, 0, 9), cycle(1, 1, 7)]
    )


@pytest.mark.parametrize(
    ("second", "rule"),
    [(cycle(0, 0, 5), "valid held"), (cycle(1, 0, 6), "payload stable"), (cycle(1, 1, 6), "stable")],
)
def test_contract_raises_in_simulation(second, rule):
    with pytest.raises(AssertionError, match=rule):
        simulate(StreamContract(8), [cycle(1, 0, 5), second, cycle(0, 0, 0)])


def test_progress_counts_only_what_counts():
    wait = {"pending": 1, "counts": 1, "happens": 0}
    skip = {"pending": 1, "counts": 0, "happens": 0}
    come = {"pending": 1, "counts": 1, "happens": 1}
    simulate(ProgressWatch(2, "it"), [wait, skip, skip, wait, come, wait, wait, come])
    with pytest.raises(AssertionError, match="it within 2 cycles"):
        simulate(ProgressWatch(2, "it"), [wait, wait, wait, come])


def test_token_count_finds_surplus_and_overflow():
    enter, leave = {"enters": 1, "leaves": 0}, {"enters": 0, "leaves": 1}
    simulate(TokenCount(2), [enter, enter, leave, leave])
    with pytest.raises(AssertionError, match="never entered"):
        simulate(TokenCount(2), [enter, leave, leave, leave])
    with pytest.raises(AssertionError, match="more than 2 inside"):
        simulate(TokenCount(2), [enter, enter, enter, enter])
