"""MemoryRequester between a foreign AXI manager and a foreign host, across a model of AMD's block."""

from nearkv_hdl.pcie.requester import MemoryRequester
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCHES = "nearkv_sim.benches"
SMALL = {"tags": 8, "completion_headers": 64, "completion_bytes": 5120}
LARGE = {"tags": 256, "completion_headers": 256, "completion_bytes": 32768}


def run(module, limits, name, seed):
    unit = MemoryRequester(**limits)
    names = ("latency", "answer_latency", "write_latency", "response_latency")
    return run_bench(
        unit,
        f"{BENCHES}.{module}",
        name=name,
        simulator=available_simulators()[0],
        seed=seed,
        parameters=limits | {name: getattr(unit, name) for name in names},
    )


def test_transfers():
    result = run("pcie_requester_bench", SMALL, "pcie-requester-small", seed=51)
    assert len(result.passed) == 4


def test_faults():
    result = run("pcie_requester_faults_bench", SMALL, "pcie-requester-small", seed=52)
    assert len(result.passed) == 4


def test_timeouts():
    result = run("pcie_requester_timeouts_bench", SMALL, "pcie-requester-small", seed=54)
    assert len(result.passed) == 5


def test_rates():
    result = run("pcie_requester_rate_bench", LARGE, "pcie-requester-large", seed=53)
    assert len(result.passed) == 4
