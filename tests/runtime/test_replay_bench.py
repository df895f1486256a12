"""`python -m benchmarks.policy_quality` on one stream and few steps; the figures are not asserted."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from nearkv.experiments.replay_protocol import ReplayProtocol

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data" / "smollm2-135m-austen-4096.safetensors"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    module = import_module("benchmarks.policy_quality")
    monkeypatch.setattr(module, "ReplayProtocol", partial(ReplayProtocol, warmup_steps=8, scored_steps=8))
    monkeypatch.setattr(module, "HISTORY_STEPS", (0, 16))

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["policy_quality", *arguments])
        return module.main()

    return run


def test_every_part_has_its_rows(bench, tmp_path, capsys):
    output = tmp_path / "rows.json"
    assert bench(str(DATA), "--layers", "12", "--hot-fractions", "0.1", "--output", str(output)) == 0
    rows = json.loads(output.read_text())
    found = {part: [row["policy"] for row in rows if row["part"] == part] for part in ("quality", "history")}
    assert found["quality"][-3:] == ["oracle", "offline, placed", "offline, bound"]
    assert found["history"] == [
        "H2O, 0 steps",
        "access count, 0 steps",
        "H2O, 16 steps",
        "access count, 16 steps",
    ]
    kept = {row["policy"]: row["mass_kept"] for row in rows if row["part"] == "quality"}
    assert kept["forecast"] <= kept["offline, bound"] <= kept["oracle"] + 1e-3
    assert {row["stream"] for row in rows if row["part"] == "traffic"} == {"L12.H0"}
    printed = capsys.readouterr().out
    for part in ("quality", "history", "traffic"):
        assert f"{part}, hot fraction 0.1, mean over 1 streams" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "3"], "--layers has 3; allowed: 2, 12, 20, 29"),
        (["--model", "no.gguf", "--text", str(ROOT / "data" / "README.md")], "the text of the trace"),
        (["--hot-fractions", "0"], "hot_fraction is 0.0; allowed: above 0 to 1"),
    ],
)
def test_errors_are_one_line(arguments, message, bench, tmp_path, capsys):
    assert bench(str(DATA), *arguments, "--output", str(tmp_path / "rows.json")) == 2
    error = capsys.readouterr().err
    assert error.startswith("policy_quality: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_folder_is_noticed_first(bench, tmp_path, capsys):
    assert bench("no-such-trace", "--output", str(tmp_path / "none" / "rows.json")) == 2
    assert f"the folder {tmp_path / 'none'} does not exist" in capsys.readouterr().err
