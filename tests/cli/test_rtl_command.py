"""`nearkv rtl`: the folder it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest

from nearkv import cli
from nearkv_sim.commands import rtl

FILES = {
    "README.md",
    "i_block.hex",
    "i_keys.hex",
    "i_query.hex",
    "o_scores.hex",
    "replay.json",
    "scorer.v",
    "testbench.v",
}


@pytest.fixture
def nearkv_rtl(monkeypatch):
    monkeypatch.setattr(cli, "load_commands", lambda: {"rtl": rtl.COMMAND})
    return lambda *words: cli.main(["rtl", *map(str, words)])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_arguments_give_equal_bytes(nearkv_rtl, tmp_path):
    for name, seed in (("a", 5), ("deep/b", 5), ("c", 6)):
        arguments = ("--design", "tiny", "--blocks", 4, "--seed", seed, "-o", tmp_path / name)
        assert nearkv_rtl(*arguments) == 0
    first, second, other = (contents(tmp_path / name) for name in ("a", "deep/b", "c"))
    assert set(first) == FILES
    assert first == second
    changed = {name for name in FILES if first[name] != other[name]}
    assert {"i_block.hex", "i_keys.hex", "i_query.hex", "o_scores.hex", "README.md", "replay.json"} == changed
    assert str(tmp_path).encode() not in b"".join(first.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "deep"]


def test_the_description_tells_seed_and_streams(nearkv_rtl, tmp_path):
    arguments = ("--design", "ulx3s_85f", "--blocks", 4, "--seed", 9, "-o", tmp_path / "out")
    assert nearkv_rtl(*arguments) == 0
    described = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert (described["design"], described["seed"]) == ("ulx3s_85f", 9)
    assert {(block["head_dim"], block["key_format"]) for block in described["blocks"]} == {
        (64, "INT8"),
        (64, "INT4"),
        (128, "INT8"),
        (128, "INT4"),
    }
    for stream in described["streams"]:
        lines = (tmp_path / "out" / stream["file"]).read_text().splitlines()
        assert len(lines) == stream["beats"]
        assert {len(line) for line in lines} == {-(-stream["width_bits"] // 4)}
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "seed 9" in readme
    assert "iverilog" in readme
    assert "verilator" in readme


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--design", "huge"), "design is 'huge'; allowed: tiny, "),
        (("--design", "tiny", "--blocks", 0), "blocks is 0; allowed: at least 1"),
        (("--design", "tiny", "--seed", -1), "seed is -1; allowed: from 0"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(nearkv_rtl, tmp_path, capsys, arguments, message):
    assert nearkv_rtl(*arguments, "-o", tmp_path / "new" / "out") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"nearkv rtl: error: {message}")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused(nearkv_rtl, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert nearkv_rtl("--design", "tiny", "-o", tmp_path / "out") == 2
    assert "exists; allowed: a new folder" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
