"""The pair of queues between a host, a memory, and a kernel whose outcomes the bench decides."""

import pytest

from nearkv_hdl.pcie.queue_unit import QueueUnit
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators


@pytest.mark.parametrize(
    ("bench", "tests", "seed"), [("pcie_queues_bench", 5, 43), ("pcie_queues_registers_bench", 4, 44)]
)
def test_queues(bench, tests, seed):
    module = f"nearkv_sim.benches.{bench}"
    result = run_bench(
        QueueUnit(), module, name="pcie-queues", simulator=available_simulators()[0], seed=seed
    )
    assert len(result.passed) == tests
