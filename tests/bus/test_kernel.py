"""The whole kernel between a host and a memory, equal to the card model to the bit; its ports and limits."""

from dataclasses import replace

import pytest

from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.top.kernel import MODULE_NAME, Kernel
from nearkv_hdl.verilog import flat_ports, to_rtlil
from nearkv_sim.benches.kernel_jobs import DESIGNS
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators
from nearkv_sim.packaging import kernel as package

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
    assert len(result.passed) == 9


def test_ports_are_those_of_the_package():
    kernel = Kernel(get_design("smartssd_ku15p"))
    assert MODULE_NAME == package.KERNEL_MODULE
    assert to_rtlil(kernel, name=MODULE_NAME)
    names = set(flat_ports(kernel))
    pins = {package.CLOCK, package.RESET, package.INTERRUPT}
    assert names >= pins
    assert all(name.startswith((package.CONTROL + "_", package.MEMORY + "_")) for name in names - pins)
    assert len(kernel.m_axi_gmem.wdata) == 512


def test_what_it_cannot_be_built_for():
    with pytest.raises(ValueError, match="bus_bytes is 128; allowed: up to 64"):
        Kernel(get_design("alveo_u50"))
    short = replace(DESIGNS["wide"], block_tokens=8, head_dims=(64,), topk=None)
    with pytest.raises(ValueError, match="block_tokens is 8 with bus_bytes 64; allowed: a multiple of 16"):
        Kernel(short)
