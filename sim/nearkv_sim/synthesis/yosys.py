"""Yosys as a function from Verilog to a count of primitive cells, cached by content."""

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

from nearkv_hdl.spec.design import Family
from nearkv_sim.cosim.build import cache_dir, file_lock

# Out of context: no pads and no clock buffer, which belong to the shell around the scorer.
_PASSES = {
    Family.ULTRASCALE_PLUS: "synth_xilinx -family xcup -flatten -noiopad -noclkbuf -top {top}",
    Family.ECP5: "synth_ecp5 -top {top}",
}
# Off unless asked for; a memory that is marked for UltraRAM has no other place.
_ULTRA_RAM_MARK, _ULTRA_RAM_OPTION = 'ram_style = "ultra"', " -uram"
# In a process of its own: Yosys ends the process when it meets an error, and logs to stdout.
_PROGRAM = "import sys; from pyosys import libyosys; libyosys.run_pass('script ' + sys.argv[1])"
_MESSAGE_LINES = 10


class SynthesisError(RuntimeError):
    """Yosys refused a design; the message is its own."""


@dataclass(frozen=True)
class Netlist:
    """What synthesis made of a design.

    Attributes:
        cells: number of primitive cells by type, in alphabetical order.
        yosys: version of the Yosys that counted them.
        passes: the command that it ran.
        verilog_sha256: digest of the source.
        cached: whether the count came from the cache.

    """

    cells: dict[str, int]
    yosys: str
    passes: str
    verilog_sha256: str
    cached: bool


def require_yosys() -> str:
    """Version of the installed Yosys; ValueError that names the extra if there is none."""
    if importlib.util.find_spec("pyosys") is None:
        raise ValueError(
            "synthesis needs Yosys, which the extra `synth` installs: "
            "pip install -e '.[synth]', or `make synth`"
        )
    return version("pyosys")


def synthesise(verilog: str, top: str, family: Family) -> Netlist:
    """Synthesise one module with everything below it.

    Equal Verilog, passes and Yosys give the same netlist, so that they are the key of the cache (in the
    folder of `nearkv_sim.cosim.build.cache_dir`). Raises ValueError without Yosys, SynthesisError with its
    message, OSError if the cache cannot be written.
    """
    yosys = require_yosys()
    passes = _passes(verilog, top, family)
    source_digest = hashlib.sha256(verilog.encode()).hexdigest()
    key = hashlib.sha256("\0".join([source_digest, passes, yosys]).encode()).hexdigest()[:32]
    folder = cache_dir() / "synth"
    path = folder / f"{top}-{family.value}-{key}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock")):  # two processes that want one netlist make it once
        cells = _read_entry(path)
        cached = cells is not None
        if cells is None:
            cells = _run(verilog, passes)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(cells), encoding="utf-8")
            partial.replace(path)
    return Netlist(cells, yosys, passes, source_digest, cached)


def _passes(verilog: str, top: str, family: Family) -> str:
    uses_ultra_ram = family is Family.ULTRASCALE_PLUS and _ULTRA_RAM_MARK in verilog
    return _PASSES[family].format(top=top) + (_ULTRA_RAM_OPTION if uses_ultra_ram else "")


def _read_entry(path: Path) -> dict[str, int] | None:
    """Cells of a cache entry; None if there is none, or one that is damaged."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    is_count = isinstance(entry, dict) and bool(entry) and all(isinstance(n, int) for n in entry.values())
    return entry if is_count else None


def mapped_netlist(verilog: str, top: str, family: Family) -> str:
    """The netlist of primitive cells itself, as Yosys writes JSON; not cached, errors as `synthesise`."""
    require_yosys()
    with tempfile.TemporaryDirectory(prefix="nearkv-synth-") as work:
        return _run_script(Path(work), verilog, _passes(verilog, top, family), "write_json {output}")


def _run(verilog: str, passes: str) -> dict[str, int]:
    with tempfile.TemporaryDirectory(prefix="nearkv-synth-") as work:
        report = _run_script(Path(work), verilog, passes, "tee -q -o {output} stat -json")
    counts = json.loads(report)["design"]["num_cells_by_type"]
    # $scopeinfo remembers the hierarchy that was flattened and is no hardware.
    return {name: counts[name] for name in sorted(counts) if name != "$scopeinfo"}


def _run_script(work: Path, verilog: str, passes: str, write: str) -> str:
    """Read the Verilog, run the passes, return what the last command writes to its `{output}`."""
    source, script, output = (work / name for name in ("design.v", "script.ys", "output.json"))
    source.write_text(verilog, encoding="utf-8")
    commands = [f"read_verilog {source.name}", passes, write.format(output=output.name)]
    script.write_text("\n".join([*commands, ""]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, script.name],
        cwd=work,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        message = done.stderr.strip().splitlines()[-_MESSAGE_LINES:]
        raise SynthesisError("\n".join(message) or f"Yosys ended with code {done.returncode}")
    return output.read_text(encoding="utf-8")
