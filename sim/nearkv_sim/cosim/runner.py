"""Runs cocotb benches on exported components: one helper, so that nobody calls a simulator by hand."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from nearkv_hdl.verilog import to_verilog
from nearkv_sim.benches import PARAMETERS_VARIABLE, REPORT_NAME
from nearkv_sim.cosim.build import cache_dir, file_lock
from nearkv_sim.cosim.simulators import (
    BUILD_ARGUMENTS,
    DUMP_MODULE,
    PRODUCTS,
    TOP,
    build_key,
    check_simulator,
    child_environment,
)

_LOG_NAME = "simulation.log"
_RESULTS_NAME = "results.xml"
_LOG_LINES = 30


class BenchError(RuntimeError):
    """A bench failed, timed out, or its simulator could not be built; the message ends with its log."""


@dataclass(frozen=True)
class BenchResult:
    """A bench that passed.

    Args:
        simulator: where it ran.
        passed: names of its tests.
        report: what the bench handed to `nearkv_sim.benches.harness.report`.
        cached: whether the built simulation came from the cache.
        build_seconds, run_seconds: wall times.

    """

    simulator: str
    passed: tuple[str, ...]
    report: dict[str, Any]
    cached: bool
    build_seconds: float
    run_seconds: float


def run_bench(
    component: wiring.Component,
    bench_module: str,
    *,
    name: str,
    simulator: str,
    seed: int,
    parameters: Mapping[str, Any] | None = None,
    timeout_seconds: float = 600,
    output_dir: Path | None = None,
    waves: bool = False,
    python_path: Sequence[Path] = (),
    tests: Sequence[str] | None = None,
    orphan_dir: Path | None = None,
) -> BenchResult:
    """Run the cocotb tests of a module on a component.

    Args:
        component: exported with flat port names; the bench's `dut`.
        bench_module: importable name of the cocotb test module.
        name: what messages and the cache call it.
        simulator: one of `available_simulators()`.
        seed: of cocotb and Python's `random` in the bench.
        parameters: JSON values for `nearkv_sim.benches.harness.parameters`.
        timeout_seconds: wall time for the build, and again for the run.
        output_dir: an existing folder for log, results and waves; None keeps nothing.
        waves: leave `dump.vcd` in output_dir.
        python_path: further folders to import the bench from.
        tests: names of the tests to run; None for all.
        orphan_dir: a folder of the caller's that is removed should this process be killed; None for none.

    Raises ValueError for a simulator that is unknown or not installed, or waves without output_dir;
    BenchError if a test fails or the time is up.

    """
    check_simulator(simulator)
    if waves and output_dir is None:
        raise ValueError("waves without output_dir; allowed: waves with a folder to leave them in")
    verilog = to_verilog(component, name=TOP)
    environment = child_environment(simulator, python_path, waves=waves)
    started = time.perf_counter()
    build_dir, cached = _build(
        name, verilog, simulator, environment, timeout_seconds, waves=waves, orphan_dir=orphan_dir
    )
    built = time.perf_counter()
    folder = tempfile.TemporaryDirectory(prefix="nearkv-") if output_dir is None else nullcontext(output_dir)
    with folder as chosen:
        test_dir = Path(chosen).resolve()
        job = {
            "stage": "test",
            "simulator": simulator,
            "orphan_dir": str(test_dir) if output_dir is None else _name(orphan_dir),
            "arguments": {
                "test_module": bench_module,
                "hdl_toplevel": TOP,
                "hdl_toplevel_lang": "verilog",
                "build_dir": str(build_dir),
                "test_dir": str(test_dir),
                "results_xml": str(test_dir / _RESULTS_NAME),
                "seed": seed,
                "timescale": ["1ns", "1ps"],
                "waves": waves and simulator == "verilator",
                "testcase": None if tests is None else list(tests),
            },
        }
        environment[PARAMETERS_VARIABLE] = json.dumps(dict(parameters or {}))
        log = test_dir / _LOG_NAME
        code = _run_stage(job, environment, log, timeout_seconds, what=f"bench {name} on {simulator}")
        passed = _read_results(test_dir / _RESULTS_NAME, code, log, what=f"bench {name} on {simulator}")
        report_file = test_dir / REPORT_NAME
        report = json.loads(report_file.read_text()) if report_file.exists() else {}
    return BenchResult(
        simulator=simulator,
        passed=passed,
        report=report,
        cached=cached,
        build_seconds=built - started,
        run_seconds=time.perf_counter() - built,
    )


def _build(
    name: str,
    verilog: str,
    simulator: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    *,
    waves: bool,
    orphan_dir: Path | None,
) -> tuple[Path, bool]:
    """Folder of the built simulation, and whether it came from the cache."""
    root = cache_dir().resolve() / "benches"
    root.mkdir(parents=True, exist_ok=True)
    build_dir = root / f"{name}-{simulator}-{build_key(verilog, simulator, waves=waves)}"
    product = build_dir / PRODUCTS[simulator]
    seal = build_dir / "sealed"  # SHA-256 of the product, written last
    with file_lock(root / f"{build_dir.name}.lock"):
        if product.exists() and seal.exists() and seal.read_text() == _file_digest(product):
            return build_dir, True
        shutil.rmtree(build_dir, ignore_errors=True)
        build_dir.mkdir()
        source, dump = build_dir / f"{TOP}.v", build_dir / "nearkv_dump.v"
        source.write_text(verilog, encoding="utf-8")
        sources, arguments = [str(source)], list(BUILD_ARGUMENTS[simulator])
        if waves and simulator == "icarus":
            dump.write_text(DUMP_MODULE, encoding="utf-8")
            sources.append(str(dump))
            arguments += ["-s", "nearkv_dump"]
        job = {
            "stage": "build",
            "simulator": simulator,
            "orphan_dir": _name(orphan_dir),
            "arguments": {
                "sources": sources,
                "hdl_toplevel": TOP,
                "build_dir": str(build_dir),
                "build_args": arguments,
                "timescale": ["1ns", "1ps"],
                "waves": waves and simulator == "verilator",
                "always": True,
            },
        }
        log = build_dir / "build.log"
        what = f"build of {name} for {simulator}"
        code = _run_stage(job, environment, log, timeout_seconds, what=what)
        if code or not product.exists():
            raise BenchError(f"{what} failed with code {code}:\n{_tail(log)}")
        seal.write_text(_file_digest(product))
    return build_dir, False


def _name(folder: Path | None) -> str | None:
    return None if folder is None else str(folder.resolve())


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run_stage(
    job: Mapping[str, Any], environment: Mapping[str, str], log: Path, timeout_seconds: float, *, what: str
) -> int:
    """Exit code of a child that runs one stage, with everything it started ended in any case."""
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "nearkv_sim.cosim.runner_child",
                json.dumps({**job, "parent": os.getpid()}),
            ],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that make and the simulator can be ended with it
        )
        try:
            return child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{what} was not done after {timeout_seconds:g} s:\n{_tail(log)}") from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])


def _read_results(results: Path, code: int, log: Path, *, what: str) -> tuple[str, ...]:
    """Names of the passed tests; BenchError unless there are some and all passed."""
    if not results.exists():
        raise BenchError(f"{what} ended with code {code} and no results:\n{_tail(log)}")
    passed: list[str] = []
    failed: list[str] = []
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        (failed if bad else passed).append(case.get("name", "?"))
    if failed or code or not passed:
        raise BenchError(f"{what} failed: {', '.join(failed) or f'code {code}, no tests'}:\n{_tail(log)}")
    return tuple(passed)
