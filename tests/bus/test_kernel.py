"""The whole kernel between a host and a memory, equal to the card model to the bit."""

import pytest

from nearkv_hdl.top.kernel import MODULE_NAME, Kernel
from nearkv_sim.benches.kernel_jobs import DESIGNS
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators
from nearkv_sim.packaging.kernel import KERNEL_MODULE

BENCH = "nearkv_sim.benches.kernel_bench"


@pytest.mark.parametrize("name", DESIGNS)
def test_kernel(name):
    result = run_bench(
        Kernel(DESIGNS[name]),
        BENCH,
        name=f"kernel-{name}",
        simulator=available_simulators()[0],
        seed=31,
        parameters={"design": name},
    )
    assert result.passed


def test_module_name():
    assert MODULE_NAME == KERNEL_MODULE
