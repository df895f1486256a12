"""`python -m benchmarks`; what it measures is not asserted anywhere."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_unknown_name():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cosmic"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "bench is 'cosmic'; allowed: " in done.stderr
    assert "cosim" in done.stderr
    assert not done.stdout


def test_cosim_compares_the_engines(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    cosim = import_module("benchmarks.cosim")
    monkeypatch.setattr(cosim, "_DESIGN", "tiny")  # the real one takes a minute to build
    monkeypatch.setattr(cosim, "_COMPILED_BLOCKS", 4)
    table = cosim.measure()
    engines = [row["engine"] for row in table.rows]
    assert engines[:2] == ["CXXRTL", "CXXRTL, random stalls"]
    assert "cocotb + verilator" in engines
    assert table.rows[0]["CXXRTL is faster by"] == 1
    assert all(engine in table.text() for engine in engines)
