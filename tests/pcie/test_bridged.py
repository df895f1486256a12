"""The driver in a thread of the simulation: the same calls give the same packets as from another process."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.top.kernel import Kernel
from nearkv_sim.benches.pcie_driver_bench import LOG_NAME
from nearkv_sim.benches.pcie_driver_jobs import run_host
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.pcie.bridged import BridgedSimulation
from nearkv_sim.pcie.simulator import SIMULATOR, Simulator

TINY = get_design("tiny")
LINK = "smartssd"
PAGE = Path(__file__).parents[2] / "docs" / "pcie-transport.md"


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


def test_the_example_of_the_page_runs(tmp_path):
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Inside a bench of your own\n")
    bench, caller = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "bench.py").write_text(bench, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", caller], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(256, 2\) scores at [\d.]+ µs\n", done.stdout)


def test_a_request_without_bridge_says_so():
    async def perform(*request):
        raise AssertionError(f"{request} was performed")

    commands = SimpleNamespace(state=(0, ()), perform=perform)
    simulation = BridgedSimulation(commands, TINY, PRESETS[LINK])
    with pytest.raises(RuntimeError, match=r"request 'power_on' .* allowed: .* cocotb\.task\.bridge"):
        simulation.call("power_on")
