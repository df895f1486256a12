"""Sweeps: axes, grids, rows, plots, interrupts, refusals."""

from __future__ import annotations

import csv
import io
import json
import signal
from pathlib import Path

import pytest

from nearkv import cli
from nearkv.commands import sweep as command
from nearkv.experiments import sweep as module
from nearkv.experiments.config import load_config
from nearkv.experiments.runner import run_experiment
from nearkv.experiments.summary import summarise
from nearkv.experiments.sweep import Axis, parse_axes, run_sweep, sweep_cells, sweep_csv
from nearkv.experiments.sweep_plots import sweep_plots
from nearkv.trace.format import read_trace, write_trace


@pytest.fixture
def config(tmp_path, trace_of, monkeypatch, fake_device):
    write_trace(tmp_path / "a.safetensors", trace_of(steps=4))
    path = tmp_path / "run.yaml"
    path.write_text("trace: a.safetensors\npolicy: {name: hill}\nsteps: 3\n")

    class Opened:
        def __init__(self, _config) -> None:
            self.device = fake_device()

        def __enter__(self):
            return self.device

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(module, "open_device", Opened)
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"sweep": command.COMMAND})
    monkeypatch.chdir(tmp_path)
    return path


def test_axes_are_values_between_commas():
    axes, overrides = parse_axes(["policy.name=hill,lru", "steps=2", "streams=[L0.H0,L1.H0],[L0.H0]"])
    assert axes == [Axis("policy.name", ("hill", "lru")), Axis("streams", ("[L0.H0,L1.H0]", "[L0.H0]"))]
    assert overrides == ["steps=2"]
    assert parse_axes(["a='x,y',z"])[0] == [Axis("a", ("'x,y'", "z"))]


def test_a_cell_is_the_run_of_its_values(config, fake_device):
    axes, overrides = parse_axes(["policy.name=hill,recency", "hot_fraction=0.3,0.6"])
    rows = list(run_sweep(sweep_cells(config, axes, overrides)))
    assert [(row["policy.name"], row["hot_fraction"]) for row in rows] == [
        ("hill", 0.3),
        ("hill", 0.6),
        ("recency", 0.3),
        ("recency", 0.6),
    ]
    for row in rows:
        words = [f"policy.name={row['policy.name']}", f"hot_fraction={row['hot_fraction']}"]
        one = load_config(config, words)
        summary = summarise(run_experiment(one, read_trace(one.trace), fake_device()))
        assert row["hit_rate"] == summary["total"]["hit_rate"]
        assert row["time_ps_per_token"] == summary["per_token"]["time_ps"]
    assert rows[1]["hit_rate"] > rows[0]["hit_rate"]
    table = list(csv.DictReader(io.StringIO(sweep_csv(rows))))
    assert [float(entry["hit_rate"]) for entry in table] == [row["hit_rate"] for row in rows]


def test_a_machine_adds_its_times(config):
    axes, overrides = parse_axes(
        ["context_tokens=4096,8192", "machine=hillinfer", "model=smollm2_135m", "steps=1"]
    )
    rows = list(run_sweep(sweep_cells(config, axes, overrides)))
    assert rows[1]["step_ms"] > rows[0]["step_ms"] > 0
    assert {"energy_j_per_token", "link_bytes_per_token", "busiest"} <= rows[0].keys()
    assert "step_ms.png" in sweep_plots(rows, axes)


def test_output_and_plots(config, capsys):
    words = ("sweep", str(config), "policy.name=hill,lru", "hot_fraction=0.3,0.6", "--format", "json")
    assert cli.main([*words, "--output", "one"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == json.loads(Path("one/sweep.json").read_text())
    assert len(rows) == 4
    assert cli.main([*words, "--output", "two"]) == 0
    names = sorted(path.name for path in Path("one").iterdir())
    assert {"sweep.csv", "sweep.txt", "hit_rate.png", "from_device_bytes_per_token.png"} <= set(names)
    for name in names:
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()
    # Bars without an axis of numbers.
    assert cli.main(["sweep", str(config), "policy.name=hill,lru", "--output", "bars"]) == 0
    assert Path("bars/hit_rate.png").stat().st_size > 1000


def test_an_interrupt_keeps_the_finished_cells(config, monkeypatch, capsys):
    original, calls = module.run_experiment, []

    def run(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **keywords)

    monkeypatch.setattr(module, "run_experiment", run)
    words = ["sweep", str(config), "hot_fraction=0.3,0.6,0.8", "--output", "part"]
    assert cli.main(words) == 130
    assert "interrupted after 2 of 3 runs" in capsys.readouterr().err
    assert len(json.loads(Path("part/sweep.json").read_text())) == 2


def test_an_interrupt_while_results_are_written_does_not_lose_them(config, monkeypatch):
    def plots(*_):
        signal.raise_signal(signal.SIGINT)
        return {}

    monkeypatch.setattr(command, "sweep_plots", plots)
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["sweep", str(config), "hot_fraction=0.3,0.6", "--output", "whole"]) == 0
    assert len(json.loads(Path("whole/sweep.json").read_text())) == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_what_cannot_be_written_is_shown(config, monkeypatch, capsys):
    def write(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(command, "write_new_folder", write)
    assert cli.main(["sweep", str(config), "hot_fraction=0.3,0.6", "--output", "whole"]) == 2
    outcome = capsys.readouterr()
    assert outcome.err == "nearkv sweep: error: the disk is full\n"
    assert [line.split()[0] for line in outcome.out.splitlines()[1:]] == ["0.3", "0.6"]


def test_values_of_an_axis_are_read_as_the_configuration_reads_them(config):
    axes, overrides = parse_axes(["select_fraction=1e-2,0.5", "steps=1"])
    rows = list(run_sweep(sweep_cells(config, axes, overrides)))
    assert [row["select_fraction"] for row in rows] == [0.01, 0.5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["steps=2"], "no axis is given; allowed: at least one key=value,value"),
        (["steps"], "override is 'steps'; allowed: key=value"),
        (["steps=1,2", "steps=3,4"], "axis steps is given twice"),
        (["steps=1,,2"], "axis is 'steps=1,,2'; allowed: no empty value"),
        (["steps=1,2,1"], "axis is 'steps=1,2,1'; allowed: each value once"),
        (["steps=1,2", "steps=3"], "override 'steps=1' replaces 'steps=3'; allowed: one of them"),
        (["nope=1,2"], "nope"),
        (["hot_fraction=0.5,7"], "hot_fraction is 7.0; allowed: 0 to 1"),
        (["seed=" + ",".join(map(str, range(1001)))], "the grid has 1001 cells; allowed: up to 1000"),
    ],
)
def test_a_refusal_is_one_line_before_the_first_run(config, capsys, monkeypatch, words, message):
    monkeypatch.setattr(module, "run_experiment", None)
    assert cli.main(["sweep", str(config), *words, "--output", "new"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("new").exists()
