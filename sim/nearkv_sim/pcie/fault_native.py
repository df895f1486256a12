"""Runs the trials of the fault matrix that need the native mode's queues, on its RTL in a simulated host."""

from __future__ import annotations

from collections.abc import Sequence

from nearkv_hdl.top.native_pcie import NativePcie
from nearkv_sim.benches.kernel_designs import DESIGNS
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.pcie.fault_runner import Found
from nearkv_sim.pcie.fault_trial import Ending, NativeTest, Trial
from nearkv_sim.pcie.simulator import SIMULATOR

_BENCH = "nearkv_sim.benches.pcie_native_faults_bench"
_DESIGN = "wide"
_COMPLETION_TIMEOUT_PS = 100 * 10**6
_SECONDS = 1800.0  # the build alone takes minutes


def run_native_trials(trials: Sequence[Trial]) -> dict[str, Found]:
    """Run trials in one simulation; how each went, by its name.

    Raises ValueError for a trial of the transport; BenchError if the bench fails.
    """
    tests: dict[str, str] = {}
    for trial in trials:
        if not isinstance(trial.provocation, NativeTest):
            raise ValueError(f"trial is {trial.name!r}; allowed: one of the native mode")
        tests[trial.name] = trial.provocation.name
    result = run_bench(
        NativePcie(DESIGNS[_DESIGN], timeout_ps=_COMPLETION_TIMEOUT_PS),
        _BENCH,
        name="native-pcie",
        simulator=SIMULATOR,
        seed=53,
        parameters={"design": _DESIGN},
        timeout_seconds=_SECONDS,
        tests=sorted(set(tests.values())),
    )
    return {name: _found(result.report[test]) for name, test in tests.items()}


def _found(reported: dict[str, object]) -> Found:
    left_over = reported["left_over"]
    assert isinstance(left_over, list)
    return Found(
        Ending(reported["ending"]), str(reported["cause"]), int(str(reported["elapsed_ps"])), tuple(left_over)
    )
