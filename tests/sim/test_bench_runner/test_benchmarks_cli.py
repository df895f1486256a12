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
    assert "bench is 'cosmic'; allowed: " in done.stderr
    assert "cosim" in done.stderr
    assert not done.stdout


def test_cosim_names_every_engine():
    done = run("cosim", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["cosim"]["rows"]
    assert [row["engine"] for row in rows[:2]] == ["CXXRTL", "CXXRTL, random stalls"]
    assert rows[0]["CXXRTL is faster by"] == 1
    assert "cocotb + verilator" in [row["engine"] for row in rows]
