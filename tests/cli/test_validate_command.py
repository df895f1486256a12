"""`nearkv validate`."""

from __future__ import annotations

import json

import pytest

from nearkv import cli
from nearkv_sim.commands import validate
from nearkv_sim.validation import areas
from nearkv_sim.validation.check import within


@pytest.fixture
def nearkv_validate(monkeypatch):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"validate": validate.COMMAND})
    return lambda *words: cli.main(["validate", *map(str, words)])


def test_an_area_as_table_json_and_plots(nearkv_validate, tmp_path, capsys):
    assert nearkv_validate("--area", "compute", "--output", tmp_path / "out") == 0
    table = capsys.readouterr().out
    assert "compute/attacc_gpt_175b/32" in table
    assert "held out" in table
    assert table.endswith("0 out of tolerance\n")
    assert table == (tmp_path / "out" / "validation.txt").read_text(encoding="utf-8")
    assert nearkv_validate("--area", "compute", "--format", "json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "out" / "validation.json").read_text(encoding="utf-8"))
    assert all(check["ok"] and check["source"] for check in content["checks"])
    assert content["claims"] == []
    plots = {path.name for path in (tmp_path / "out").glob("*.svg")}
    assert {"compute-attacc_gpt_175b.svg", "compute-decode_rtx_4090.svg"} <= plots


def test_machines_report_claims(nearkv_validate, capsys):
    assert nearkv_validate("--area", "machines") == 0
    assert "does not hold" in capsys.readouterr().out


def test_exit_code_1_when_a_figure_is_missed(nearkv_validate, monkeypatch, capsys):
    check = within("compute/x", "ms", 1.0, 0.1, "a paper", lambda: 2.0)
    monkeypatch.setitem(areas.AREAS, "compute", lambda: [check])
    assert nearkv_validate("--area", "compute") == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("OUT  compute/x  1          2     +100.0 %")


def test_bad_input_is_one_line(nearkv_validate, tmp_path, capsys):
    assert nearkv_validate("--area", "gpu") == 2
    assert nearkv_validate("--area", "compute", "--output", tmp_path) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("nearkv validate: error: area is 'gpu'; allowed: ")
    assert "exists; allowed: a new folder" in second
