"""`python -m benchmarks`; what it measures is not asserted anywhere."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_unknown_name():
    done = run("cosmic")
    assert done.returncode == 2
    assert "benchmark is 'cosmic'; allowed: cosim, golden" in done.stderr
    assert not done.stdout


def test_cosim_names_every_engine():
    done = run("cosim", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["cosim"]
    assert [row["case"].split(":")[0] for row in rows[:2]] == ["CXXRTL", "CXXRTL, random stalls"]
    assert rows[0]["ratio"] == 1
    assert any(row["case"].startswith("cocotb on verilator") for row in rows)
