"""The proof engine: RTLIL to AIGER with Yosys, then ABC's property-directed reachability or bounded check."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from amaranth.back import rtlil

# Yosys runs in a process of its own: its errors end the process, and its log goes to stdout.
_YOSYS = "import sys; from pyosys import libyosys as ys; ys.run_pass('script ' + sys.argv[1])"

DEFAULT_TIMEOUT_SECONDS = 300
RESET = "rst"  # Amaranth's name for the reset of the domain `sync`

# Word-level preparation. Assertions become $assert/$assume cells, memories keep their cells.
_PREPARE = """\
read_rtlil {rtlil}
hierarchy -top top
proc
flatten
opt_clean
memory_collect
memory_nordff
"""

_TO_AIGER = """\
{cuts}
async2sync
chformal -lower
chformal -cover -live -fair -remove
chformal -assume -early
opt_clean
memory_map -formal
formalff -setundef -clk2ff -ff2anyinit
setundef -undriven -anyseq
opt -full
techmap
opt -fast
simplemap
dffunmap
aigmap
opt_clean
delete -output
write_aiger -I -B -zinit -map design.aim design.aig
"""

_FLIP_FLOPS = "t:$dff t:$dffe t:$sdff t:$sdffe t:$sdffce t:$adff t:$adffe"


class Status(Enum):
    """What is known after a run."""

    PROVED = "proved"  # for all time
    BOUNDED = "holds for the first cycles"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class FormalError(RuntimeError):
    """A tool failed; the message ends with what it said."""


@dataclass(frozen=True)
class Proof:
    """Outcome of a proof.

    Args:
        status: what is known.
        message: one line for a person.
        cycles: BOUNDED: cycles searched; REFUTED: cycles of the counterexample.
        counterexample: values of the bench's free inputs and of the reset `rst`, one mapping per cycle
            (REFUTED only). Inputs that stand for cut-away logic are left out.

    """

    status: Status
    message: str
    cycles: int | None = None
    counterexample: tuple[Mapping[str, int], ...] = field(default=())

    def __bool__(self) -> bool:
        """Whether the property holds, for all time or as far as was asked."""
        return self.status in (Status.PROVED, Status.BOUNDED)


def _require(module: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise FormalError(f"proofs need the package {module}: install the extra `formal`")
    return Path(next(iter(found.submodule_search_locations)))


def run_yosys(script: str, folder: Path) -> str:
    """Run a Yosys script in a folder; FormalError with the end of the log if it fails."""
    _require("pyosys")
    path = folder / "run.ys"
    path.write_text(script)
    result = subprocess.run(
        [sys.executable, "-c", _YOSYS, path.name], cwd=folder, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise FormalError(f"yosys failed: {(result.stdout + result.stderr)[-800:]}")
    return result.stdout


def cut_commands(cut: Sequence[str]) -> str:
    """Replace the outputs of all cells of the named types by free values."""
    return "\n".join(f"cutpoint t:{cell}" for cell in cut)


def _read_inputs(folder: Path, ports: Sequence[str]) -> tuple[Mapping[str, int], ...]:
    """Decode ABC's counterexample: a line of latches, then one line of inputs per cycle."""
    where: dict[int, tuple[str, int]] = {}
    for line in (folder / "design.aim").read_text().splitlines():
        fields = line.split()  # `kind position bit name`, or `ninitff latch` beside free initial values
        if len(fields) == 4 and fields[0] == "input" and fields[3] in ports:
            where[int(fields[1])] = (fields[3], int(fields[2]))
    cycles: list[Mapping[str, int]] = []
    for line in (folder / "design.cex").read_text().splitlines()[1:]:
        if not re.fullmatch(r"[01x]+", line):
            break
        values = dict.fromkeys(ports, 0)
        for index, (port, shift) in where.items():
            values[port] |= int(line[index] == "1") << shift
        cycles.append(values)
    return tuple(cycles)


def prove(
    design: Any,
    inputs: Mapping[str, Any],
    *,
    bound: int | None = None,
    cut: Sequence[str] = (),
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Proof:
    """Prove every Assert in a design under its Assumes, from the initial state, resets at any time.

    Args:
        design: an elaboratable.
        inputs: its free inputs by name; everything else must be driven inside.
        bound: None proves for all time; a number checks only the first so many cycles.
        cut: Yosys cell types whose outputs become free values ($mul, $mem_v2). A proof with cuts holds for
            the design without them; a refutation may be an artefact of the cut.
        timeout_seconds: when ABC gives up; wall time, so generous for a loaded machine.

    Raises FormalError if a tool is missing or fails, ValueError for a bound below 1.

    """
    if bound is not None and bound < 1:
        raise ValueError(f"bound is {bound}; allowed: from 1")
    with tempfile.TemporaryDirectory(prefix="nearkv-formal-") as name:
        folder = Path(name)
        text = rtlil.convert(design, ports=list(inputs.values()), emit_src=False)
        if '\\FLAVOR "assert"' not in text:
            raise FormalError("the design asserts nothing")
        (folder / "design.il").write_text(text)
        run_yosys(_PREPARE.format(rtlil="design.il") + _TO_AIGER.format(cuts=cut_commands(cut)), folder)
        log = "combinational" if bound is None else _abc(folder, f"bmc3 -F {bound} -T {timeout_seconds}")
        if "combinational" in log:  # bmc3 wants registers; without any, a proof is as easy as a search
            log = _abc(folder, f"pdr -T {timeout_seconds}")
        if asserted := re.search(r"was asserted in frame (\d+)", log):
            trace = _read_inputs(folder, (*inputs, RESET))
            cycles = int(asserted[1]) + 1
            return Proof(Status.REFUTED, f"breached in cycle {cycles}", cycles, trace)
    if "Property proved" in log or "All outputs solved" in log:  # the latter: constant after optimisation
        return Proof(Status.PROVED, "proved for all time")
    if bound and (done := re.search(r"No output asserted in (\d+) frames", log)) and int(done[1]) >= bound:
        return Proof(Status.BOUNDED, f"holds for {bound} cycles", bound)
    return Proof(Status.UNKNOWN, f"undecided: {log.strip()[-200:]}")


def _abc(folder: Path, method: str) -> str:
    """Run one of ABC's methods on the folder's AIGER file; returns its log."""
    return run_abc(folder, f"read_aiger design.aig; fold; orpos; strash; {method}; write_cex -a design.cex")


def run_abc(folder: Path, commands: str) -> str:
    """Run ABC commands in a folder; returns the log."""
    result = subprocess.run(
        [_require("pyosys") / "yosys-abc", "-q", commands],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout


def gate_paths(
    design: Any, ports: Sequence[Any], targets: Sequence[str], sources: Sequence[str]
) -> frozenset[tuple[str, str]]:
    """Pairs (target, source): an output and an input it depends on through gates alone, within a cycle.

    Structural, on the netlist after optimisation: an absent pair is a proof, a pair that is there may be a
    path that logic blocks.

    Raises FormalError if a target is no output, a source no input, or Yosys fails.

    """
    pairs = [(target, source) for target in targets for source in sources]
    counts = "\n".join(
        f"select -assert-count 1 top/o:{target} top/{target} %i\n"
        f"select -assert-count 1 top/i:{source} top/{source} %i\n"
        f"select -count top/{target} %ci* top/{source} %i"
        for target, source in pairs
    )
    script = (
        _PREPARE.format(rtlil="design.il")
        + f"""\
chformal -remove
cutpoint {_FLIP_FLOPS}
select -set kept {" ".join(f"top/{target}" for target in targets)}
delete -port top/o:* @kept %d
opt -full
opt_clean -purge
memory_map
opt -full
techmap
simplemap
splitnets
opt -full
opt_clean -purge
{counts}
"""
    )
    with tempfile.TemporaryDirectory(prefix="nearkv-formal-") as name:
        folder = Path(name)
        (folder / "design.il").write_text(rtlil.convert(design, ports=list(ports), emit_src=False))
        log = run_yosys(script, folder)
    found = [int(count) for count in re.findall(r"^(\d+) objects", log, re.MULTILINE)]
    if len(found) != len(pairs):
        raise FormalError(f"yosys counted {len(found)} of {len(pairs)} cones: {log[-400:]}")
    return frozenset(pair for pair, count in zip(pairs, found, strict=True) if count)
