"""The pair of queues between a host, a memory, and a kernel whose outcomes the bench decides."""

from nearkv_hdl.pcie.queue_unit import QueueUnit
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCH = "nearkv_sim.benches.pcie_queues_bench"


def test_queues():
    result = run_bench(QueueUnit(), BENCH, name="pcie-queues", simulator=available_simulators()[0], seed=43)
    assert len(result.passed) == 9
