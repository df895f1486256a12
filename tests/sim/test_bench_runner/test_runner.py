"""The cocotb runner: outcomes, timeouts, seeds, cache, waves; on every simulator there is."""

from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_sim.cosim import simulators
from nearkv_sim.cosim.runner import BenchError, run_bench
from nearkv_sim.cosim.simulators import available_simulators


class Register(wiring.Component):
    """One register stage; `fault` breaks a rule of streams at its output."""

    i: In(stream.Signature(8))
    o: Out(stream.Signature(8))

    def __init__(self, fault=None):
        self.fault = fault
        super().__init__()

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        with m.If(self.i.ready):
            m.d.sync += [self.o.payload.eq(self.i.payload), self.o.valid.eq(self.i.valid)]
        with m.If(self.o.valid & ~self.o.ready):
            if self.fault == "withdraw":
                m.d.sync += self.o.valid.eq(0)
            if self.fault == "change":
                m.d.sync += self.o.payload.eq(self.o.payload + 1)
        return m


def runner_of(simulator):
    def bench(test, *, fault=None, **options):
        return run_bench(
            Register(fault),
            "broken_bench",
            name="register",
            simulator=simulator,
            python_path=[Path(__file__).parent],
            tests=[test],
            **{"seed": 1, **options},
        )

    return bench


@pytest.fixture(params=available_simulators())
def run(request, monkeypatch):
    """Runs one test of broken_bench on the register, on each simulator."""
    monkeypatch.setenv("COCOTB_TEST_FILTER", "nothing")  # must not reach the bench
    monkeypatch.setenv("MAKEFLAGS", "-n")
    return runner_of(request.param)


@pytest.fixture
def run_once():
    """The same on one simulator, for what does not depend on it; Icarus builds faster."""
    return runner_of(available_simulators()[-1])


def test_a_simulator_is_there():
    assert "verilator" in available_simulators()


def test_result_and_report(run):
    result = run("passes", parameters={"x": [1, "a"]})
    assert result.passed == ("passes",)
    assert result.report["parameters"] == {"x": [1, "a"]}
    # Three beats through one register, one cycle after the last was taken.
    assert result.report["cycles"] == 4
    again = run("passes")
    assert again.cached
    assert again.report["draw"] == result.report["draw"]
    assert run("passes", seed=2).report["draw"] != result.report["draw"]


def test_failures_carry_the_log(run_once):
    with pytest.raises(BenchError, match=r"expects_a_beat_too_few:(.|\n)*o sent more than 2 beats"):
        run_once("expects_a_beat_too_few")
    with pytest.raises(BenchError, match=r"bench register on \w+ failed: waits_for_ever:"):
        run_once("waits_for_ever")


@pytest.mark.parametrize(
    ("fault", "message"), [("withdraw", "o withdrew valid"), ("change", "o changed its payload")]
)
def test_broken_streams_are_seen(run_once, fault, message):
    with pytest.raises(BenchError, match=rf"broken_rules_are_seen:(.|\n)*{message}"):
        run_once("broken_rules_are_seen", fault=fault)


def test_a_hung_simulator_is_ended(run_once):
    with pytest.raises(BenchError, match=r"bench register on \w+ was not done after 5 s"):
        run_once("hangs", timeout_seconds=5)


def test_no_test_is_no_success(run_once):
    with pytest.raises(BenchError, match="bench register on"):
        run_once("no_such_test")


def test_waves(run, tmp_path):
    run("passes", waves=True, output_dir=tmp_path)
    text = (tmp_path / "dump.vcd").read_text()
    assert "$enddefinitions" in text
    assert "o_payload" in text
    with pytest.raises(ValueError, match="waves without output_dir"):
        run("passes", waves=True)


def test_damaged_builds_are_made_again(run, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARKV_CACHE", str(tmp_path))
    monkeypatch.setenv("CCACHE_DIR", str(Path.home() / ".cache" / "nearkv" / "ccache"))
    run("passes")
    for product in [*tmp_path.glob("benches/*/sim.vvp"), *tmp_path.glob("benches/*/top")]:
        product.write_bytes(product.read_bytes()[:100])
    assert not run("passes").cached
    assert run("passes").cached


@pytest.mark.parametrize(
    ("simulator", "message"),
    [
        ("modelsim", "simulator 'modelsim' is unknown; allowed here: "),
        ("icarus", "'icarus' is not installed"),
    ],
)
def test_simulators_that_are_not_there(monkeypatch, simulator, message):
    monkeypatch.setattr(simulators.shutil, "which", lambda *_args, **_options: None)
    component = Register()
    component._MustUse__silence = True
    with pytest.raises(ValueError, match=message):
        run_bench(component, "broken_bench", name="register", simulator=simulator, seed=1)
