"""The cache of compiled libraries: hits, damage, races, and what changes the key."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nearkv_sim.cosim import CompiledComponent, CosimBuildError
from nearkv_sim.cosim.build import cache_dir, find_compiler

ONE = np.ones((1, 1), np.uint32)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEARKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cosim"


def compile_and_run(components):
    compiled = CompiledComponent(components.Passthrough(), name="passthrough")
    assert compiled.run({"i": ONE}, {"o": 1}).outputs["o"].tolist() == [[1]]
    return compiled


def test_second_build_loads(own_cache, components):
    assert not compile_and_run(components).cached
    assert compile_and_run(components).cached
    assert len(list(own_cache.glob("*.so"))) == 1
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "foreign"])
def test_damaged_entry_is_rebuilt(own_cache, components, damage):
    compile_and_run(components)
    (entry,) = own_cache.glob("*.so")
    good = entry.read_bytes()
    bad = {
        "empty": b"",
        "truncated": good[: len(good) // 2],
        "flipped": good[:5000] + bytes([good[5000] ^ 1]) + good[5001:],
        "foreign": b"not a library" * 100,
    }[damage]
    entry.unlink()  # a new file: this process may still execute the old one
    entry.write_bytes(bad)
    assert not compile_and_run(components).cached
    assert entry.read_bytes() != bad
    assert compile_and_run(components).cached


def test_two_processes_build_one_entry(own_cache):
    script = """
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from nearkv_sim.cosim import CompiledComponent
import numpy as np

class Inverter(wiring.Component):
    i: wiring.In(stream.Signature(8))
    o: wiring.Out(stream.Signature(8))

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.o.p.eq(~self.i.p), self.o.valid.eq(self.i.valid), self.i.ready.eq(self.o.ready)]
        return m

compiled = CompiledComponent(Inverter(), name="inverter")
print(compiled.cached, compiled.run({"i": np.ones((1, 1), np.uint32)}, {"o": 1}).outputs["o"][0, 0])
"""

    def build(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
        return subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    # Different hash seeds: the key must not depend on the order of a set.
    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(build, (1, 2)))
    assert results == [["False", "254"], ["True", "254"]]
    assert len(list(own_cache.glob("*.so"))) == 1


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NEARKV_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "nearkv"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "nearkv"
    monkeypatch.setenv("NEARKV_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"


def test_compilers_that_are_missing_or_broken(own_cache, monkeypatch, components):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match="compiler is 'no-such-compiler', which is not installed"):
        CompiledComponent(components.Passthrough(), name="passthrough")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CosimBuildError, match="compiler 'false' does not work"):
        CompiledComponent(components.Passthrough(), name="passthrough")
    # Preprocesses, so it passes the probe, but cannot link.
    monkeypatch.setenv("CXX", "g++ -lno-such-library")
    with pytest.raises(CosimBuildError, match=r"failed with code 1:(.|\n)*no-such-library"):
        CompiledComponent(components.Passthrough(), name="passthrough")
    assert not list(own_cache.glob("*.so"))
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


def test_compiler_options_are_part_of_the_identity(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    plain = find_compiler()
    monkeypatch.setenv("CXX", "g++ -DOTHER")
    other = find_compiler()
    assert other.command == ("g++", "-DOTHER")
    assert other.identity != plain.identity


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a b"])
def test_bad_names(components, name):
    with pytest.raises(ValueError, match="allowed: letters, digits"):
        CompiledComponent(components.Passthrough(), name=name)
