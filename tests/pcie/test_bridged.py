"""The driver in a thread of the simulation: the same calls give the same packets as from another process."""

from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.top.kernel import Kernel
from nearkv_sim.benches.pcie_driver_bench import LOG_NAME
from nearkv_sim.benches.pcie_driver_jobs import run_host
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.pcie.simulator import SIMULATOR, Simulator

TINY = get_design("tiny")
LINK = "smartssd"


def test_the_unchanged_driver_gives_the_same_packets_inside_and_outside(tmp_path):
    result = run_bench(
        Kernel(TINY),
        "nearkv_sim.benches.pcie_driver_bench",
        name=f"pcie-{TINY.name}",
        simulator=SIMULATOR,
        seed=1,
        parameters={"design": TINY.name, "link": LINK},
        output_dir=tmp_path,
    )
    assert result.passed == ("the_driver_runs_inside",)
    outside = tmp_path / "outside.jsonl"
    simulator = Simulator(TINY, PRESETS[LINK])
    try:
        cycles = run_host(simulator, outside)
        time_ps = simulator.state[0]
    finally:
        simulator.close()
    assert result.report == {"cycles": cycles, "time_ps": time_ps}
    inside = (tmp_path / LOG_NAME).read_bytes()
    assert len(inside) > 10_000
    assert inside == outside.read_bytes()
