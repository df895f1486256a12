"""Likelihood under a policy: full attention where everything is hot, a second way, refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from nearkv import cli
from nearkv.commands import likelihood as command
from nearkv.experiments.likelihood import LikelihoodRun
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.trace import llama
from nearkv.trace.source import ModelText

CONTEXT, STEPS = 300, 40


@pytest.fixture
def files(tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the thin thing that they think of, then there, thus thrice " * 20)
    return tiny.write(tmp_path / "tiny.gguf"), text


def protocol_of(hot_fraction, **changes):
    sizes = {"hot_fraction": hot_fraction, "select_fraction": 0.1, "warmup_steps": 0, "scored_steps": STEPS}
    return ReplayProtocol(**sizes | changes)


def test_full_attention_has_the_perplexity_of_the_last_tokens(files):
    run = LikelihoodRun(*files, CONTEXT, protocol_of(0.2))
    source = ModelText(*files, CONTEXT)
    hidden = llama.run_layers(
        source.config, source.weight, source.token_ids, source.config.layers - 1, lambda _: None, finish=True
    )
    each = llama.losses(source.config, source.weight, hidden[:-1], source.token_ids[1:], source.tied)
    assert run.full() == pytest.approx(each[-STEPS:].mean(), rel=1e-6)
    perplexity = llama.perplexity(source.config, source.weight, hidden, source.token_ids, source.tied)
    assert math.log(perplexity) == pytest.approx(each.mean())


def test_with_everything_hot_nothing_changes(files):
    run = LikelihoodRun(*files, CONTEXT, protocol_of(1.0))
    found = run.policy("recency", {})
    assert found.loss == run.full()
    assert found.mass_kept == pytest.approx(1)


def test_a_pool_of_recent_tokens_by_a_second_way(files):
    """Recency in a pool of exactly its pins is a fixed mask: first 4 and last tokens of each row."""
    protocol = protocol_of(0.2, sinks=4, recent_tokens=10)
    run = LikelihoodRun(*files, CONTEXT, protocol)
    source = ModelText(*files, CONTEXT)
    tokens = CONTEXT - 1

    def restrict(attention):
        allowed = np.zeros((len(attention.key), STEPS, tokens), np.bool_)
        for step in range(STEPS):
            context = tokens - STEPS + step + 1
            hot = int(0.2 * context + 1e-9)
            allowed[:, step, :4] = True
            allowed[:, step, context - (hot - 4) : context] = True
        return allowed

    hidden = llama.run_layers(
        source.config,
        source.weight,
        source.token_ids[:-1],
        source.config.layers - 1,
        lambda _: None,
        True,
        restrict,
    )
    each = llama.losses(source.config, source.weight, hidden[-STEPS:], source.token_ids[-STEPS:], source.tied)
    found = run.policy("recency", {})
    assert found.loss == pytest.approx(each.mean(), rel=1e-6)
    assert 0 < found.mass_kept < 1
    assert found.loss != pytest.approx(run.full(), rel=1e-4)


def test_a_mask_reaches_every_chunk(files, monkeypatch):
    run = LikelihoodRun(*files, CONTEXT, protocol_of(0.2))
    once = run.policy("lru", {}).loss
    monkeypatch.setattr(llama, "CHUNK", 23)
    assert run.policy("lru", {}).loss == pytest.approx(once, rel=1e-5)


def test_a_better_placement_keeps_more(files):
    run = LikelihoodRun(*files, CONTEXT, protocol_of(0.2))
    assert run.policy("oracle", {}).mass_kept > run.policy("recency", {}).mass_kept


def test_command(files, monkeypatch, capsys):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"likelihood": command.COMMAND})
    model, text = files
    words = ["likelihood", "recency", "hill", "--model", str(model), "--text", str(text)]
    words += ["--context-tokens", str(CONTEXT), "--steps", str(STEPS), "--hot-fraction", "0.2"]
    assert cli.main([*words, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["policy"] for row in rows] == ["full attention", "recency", "hill"]
    for row in rows:
        assert row["delta"] == pytest.approx(row["loss"] - rows[0]["loss"])
    assert cli.main(words) == 0
    assert "40 tokens after 260" in capsys.readouterr().out
    for changes, message in (
        (["--context-tokens", "41"], "context-tokens is 41; allowed: from 42"),
        (["--context-tokens", "600"], "allowed: 1…512"),
        (["--hot-fraction", "2"], "hot_fraction is 2.0; allowed: above 0 to 1"),
        (["--model", "nope.gguf"], "nope.gguf"),
    ):
        assert cli.main([*words, *changes]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert cli.main([words[0], "nope", *words[3:]]) == 2
    assert "policy is 'nope'" in capsys.readouterr().err
