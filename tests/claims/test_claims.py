"""`nearkv claims`: the list, single figures that are known by other means, and the command."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from nearkv import cli
from nearkv.claims.claim import ClaimInputs, Verdict, record
from nearkv.claims.published import measure_all, published_claims
from nearkv.commands import claims as command

VERDICTS = {verdict.value for verdict in Verdict}


@pytest.fixture(scope="module")
def inputs(request):
    return ClaimInputs(request.config.rootpath / "data" / "smollm2-135m-austen-4096.safetensors")


@pytest.fixture
def nearkv_claims(monkeypatch, capsys):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"claims": command.COMMAND})

    def run(*words):
        code = cli.main(["claims", *map(str, words)])
        return code, capsys.readouterr()

    return run


def of(name, inputs):
    (claim,) = published_claims([name])
    return record(claim, inputs)


def test_names_are_unique_and_say_the_article():
    names = [claim.name for claim in published_claims()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"(hillinfer|pam)/[a-z0-9_/]+", name) for name in names)
    assert {c.name for c in published_claims(["pam"])} == {n for n in names if n.startswith("pam/")}


def test_every_claim_is_measured_or_says_why_not(inputs):
    for entry in measure_all(published_claims(), inputs):
        assert entry["verdict"] in VERDICTS
        assert entry["theirs"]
        assert entry["statement"]
        if entry["verdict"] == Verdict.UNMEASURED.value:
            assert entry["note"], entry["name"]
        else:
            assert re.search(r"\d", entry["ours"]), entry["name"]
            assert entry["command"].split()[0] in {"nearkv", "python", "make"}


def test_a_claim_that_the_command_itself_measures_again_names_itself():
    for claim in published_claims():
        if claim.command.startswith("nearkv claims"):
            assert claim.command.split()[-1] == claim.name


def test_the_page_has_every_claim(request):
    page = (request.config.rootpath / "docs" / "claims.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z0-9_/]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(claim.name.partition("/")[2] for claim in published_claims())


def test_without_a_trace_its_figures_are_left_out():
    entry = of("pam/locality_85", ClaimInputs(None))
    assert entry["verdict"] == "not measured"
    assert "--trace" in entry["note"]


def test_the_cache_of_a_7b_model_is_exact(inputs):
    assert of("hillinfer/kv_16_gb", inputs)["ours"] == "16 GiB"
    assert of("pam/kv_2304_gb", inputs)["ours"] == "2304 GiB"


def test_locality_by_a_second_way(inputs):
    trace, shares = inputs.trace, []
    for stream in trace.streams:
        keys = stream.key.astype(np.float64)
        previous = None
        for step in range(trace.steps):
            tokens = trace.first_query_position + step + 1
            logits = stream.query[:, step].astype(np.float64) @ keys[:tokens].T / np.sqrt(trace.head_dim)
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            mean = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
            top = set(np.argsort(-mean)[: -(-tokens // 10)].tolist())
            if previous is not None:
                shares.append(len(previous & top) / len(previous))
            previous = top
    assert of("pam/locality_85", inputs)["ours"].startswith(f"{np.mean(shares):.0%} of the top 10 %")


def test_algorithm_1_is_wrong_only_as_printed(inputs):
    entry = of("pam/algorithm_1", inputs)
    assert entry["verdict"] == "differs"
    printed, linear = re.findall(r"\d[\d.e-]*", entry["ours"])
    assert float(printed) > 0.1
    assert float(linear) < 1e-12


def test_table_and_json(nearkv_claims):
    code, output = nearkv_claims("hillinfer/fpga_luts", "pam/algorithm_1")
    assert code == 0
    assert "hillinfer/fpga_luts: differs" in output.out
    assert output.out.splitlines()[-1] == "2 claims: 2 differs"
    code, output = nearkv_claims("hillinfer/fpga_luts", "--format", "json")
    (entry,) = json.loads(output.out)
    assert entry["ours"] == "522,720"
    assert nearkv_claims("hillinfer/fpga_luts", "--format", "json")[1].out == output.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope",), "claim is 'nope'; allowed: hillinfer, pam"),
        (("pam/locality_85", "--trace", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_line(nearkv_claims, words, message):
    code, output = nearkv_claims(*words)
    assert code == 2
    assert message in output.err
    assert output.err.count("\n") == 1
