"""cocotb bench: the host's driver, unchanged, in a thread within the simulation of link and kernel.

Parameters: `design` and `link`, by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cocotb
from cocotb.task import bridge

from nearkv_hdl.spec.designs import get_design
from nearkv_sim.benches.harness import parameters, report
from nearkv_sim.benches.pcie_driver_jobs import run_host
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.pcie.bridged import BridgedSimulation

LOG_NAME = "tlps.jsonl"


@cocotb.test(timeout_time=100, timeout_unit="ms")
async def the_driver_runs_inside(dut: Any) -> None:
    """Jobs as `run_host` does them, which compares their scores."""
    chosen = parameters()
    simulation = await BridgedSimulation.start(dut, get_design(chosen["design"]), PRESETS[chosen["link"]])
    cycles = await bridge(run_host)(simulation, Path(LOG_NAME))
    report(cycles=cycles, time_ps=simulation.state[0])
