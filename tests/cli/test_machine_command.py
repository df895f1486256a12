"""`nearkv machine`."""

from __future__ import annotations

import json

import pytest

from nearkv import cli
from nearkv_sim.commands import machine
from nearkv_sim.hardware.machine import MACHINE_FOLDER, machine_names


@pytest.fixture
def nearkv_machine(monkeypatch):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"machine": machine.COMMAND})
    return lambda *words: cli.main(["machine", *map(str, words)])


def test_lists_the_machines(nearkv_machine, capsys):
    assert nearkv_machine() == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == machine_names()
    assert nearkv_machine("--format", "json") == 0
    assert [entry["machine"] for entry in json.loads(capsys.readouterr().out)] == machine_names()


def test_describes_one_with_attention_and_claims(nearkv_machine, capsys):
    words = ("hillinfer", "--model", "llama_13b", "--context", "36000", "--batch", "4", "--shares")
    assert nearkv_machine(*words) == 0
    text = capsys.readouterr().out
    assert "own: cycle formula confirmed by RTL, 300 MHz" in text
    assert "because of peer_to_peer" in text
    assert "published claims, reported only" in text
    assert "whole step" in text
    assert nearkv_machine(*words, "--format", "json") == 0
    first = capsys.readouterr().out
    content = json.loads(first)
    assert content["attention"]["why"] == "peer_to_peer"
    assert content["attention"]["kv_bytes"] == 36000 * 4 * 819200
    step = content["step"]
    assert step["time_ps"] == step["attention_ps"] + step["rest_ps"] + step["weights_ps"]
    assert [entry["bound"] for entry in step["decode_layer"] if entry["kernel"] == "qkv"] == ["memory"]
    assert [entry["bound"] for entry in step["prefill_layer"] if entry["kernel"] == "qkv"] == ["compute"]
    life = content["endless"]["drive_life_years"]["nand"]
    assert life["whole blocks"] > 10 * life["single rows"]
    assert {claim["machine"] for claim in content["claims"]} == {"hillinfer"}
    assert content["sources"]["gpu: peak_flops_per_s"].startswith("NVIDIA")
    assert nearkv_machine(*words, "--format", "json") == 0
    assert capsys.readouterr().out == first


def test_a_file_of_ones_own(nearkv_machine, tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text((MACHINE_FOLDER / "pam.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    assert nearkv_machine(path) == 0
    assert capsys.readouterr().out.startswith("mine: 8 H100")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cray",), "machine is 'cray'; allowed: dgx_h100"),
        (("none.yaml",), "No such file"),
        (("hillinfer", "--batch", "2"), "--batch is 2; allowed: only with --model"),
        (("--shares",), "--shares needs a machine"),
        (("pam_deployment", "--shares"), "no article claims anything about 'pam_deployment'"),
        (("hillinfer", "--model", "gpt5"), "model profile is 'gpt5'; allowed: gpt_175b"),
        (("hillinfer", "--model", "llama_13b", "--context", "0"), "context is 0"),
        (("hillinfer", "--model", "llama_13b", "--select", "2"), "select_fraction is 2.0"),
    ],
)
def test_bad_input_is_one_line(nearkv_machine, capsys, words, message):
    assert nearkv_machine(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nearkv machine: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
