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


def test_unknown_bench():
    done = run("cosmic")
    assert done.returncode == 2
    assert "bench is 'cosmic'; allowed: cosim, golden" in done.stderr
    assert not done.stdout


def test_table_and_json():
    table = run("golden")
    assert table.returncode == 0, table.stderr
    assert len(table.stdout.strip().splitlines()) == 2 + 1 + 3
    rows = json.loads(run("golden", "--format", "json").stdout)["golden"]["rows"]
    assert [row["head_dim"] for row in rows] == [64, 128, 256]
