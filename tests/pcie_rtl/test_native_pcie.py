"""The whole top of native PCIe in a host; its ports and limits."""

from dataclasses import replace

import pytest

from nearkv_hdl.top.native_pcie import MODULE_NAME, NativePcie
from nearkv_hdl.verilog import flat_ports
from nearkv_sim.benches.kernel_designs import DESIGNS
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCH = "nearkv_sim.benches.pcie_native_bench"
TIMEOUT_PS = 100 * 10**6


def test_native_pcie():
    result = run_bench(
        NativePcie(DESIGNS["wide"], timeout_ps=TIMEOUT_PS),
        BENCH,
        name="native-pcie",
        simulator=available_simulators()[0],
        seed=47,
        parameters={"design": "wide"},
        timeout_seconds=1800,  # the build alone takes minutes
    )
    assert len(result.passed) == 6


def test_ports_are_those_of_the_block():
    names = set(flat_ports(NativePcie(DESIGNS["wide"])))
    streams = {
        f"{stream}_{signal}"
        for stream in ("s_axis_cq", "m_axis_cc", "m_axis_rq", "s_axis_rc")
        for signal in ("tdata", "tkeep", "tlast", "tuser", "tvalid", "tready")
    }
    others = {"user_clk", "user_reset", "pcie_cq_np_req", "extended_tags"}
    assert names >= streams | others
    assert all(name.startswith("cfg_") for name in names - streams - others)
    assert MODULE_NAME.isidentifier()


def test_what_it_cannot_be_built_for():
    with pytest.raises(ValueError, match="bus_bytes is 8; allowed: 64"):
        NativePcie(DESIGNS["narrow"])
    with pytest.raises(ValueError, match="key_masters is 2; allowed: 1, since there is one link"):
        NativePcie(DESIGNS["banks"])
    with pytest.raises(ValueError, match="timeout_ps is 1000, 0 cycles; allowed: 16 to 1073741823 cycles"):
        NativePcie(replace(DESIGNS["wide"], clock_hz=250_000_000), timeout_ps=1000)
