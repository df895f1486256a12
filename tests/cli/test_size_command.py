"""`nearkv size`."""

from __future__ import annotations

import json

import pytest

from nearkv import cli
from nearkv_sim.commands import size
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.model_shapes import named_model
from nearkv_sim.sizing import cache_size, tier_split

GIB = 1 << 30


@pytest.fixture
def nearkv_size(monkeypatch, capsys):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"size": size.COMMAND})

    def run(*words):
        code = cli.main(["size", *map(str, words)])
        return code, capsys.readouterr()

    return run


def content(output):
    return json.loads(output.out)


def test_seven_billion_multi_head_at_32k_needs_16_gib(nearkv_size):
    # 2 · 32 layers · 32 heads · 128 channels · 2 bytes · 32,768 tokens
    _, output = nearkv_size("llama2_7b", "--context", 32768, "--format", "json")
    assert content(output)["kv_bytes"] == 16 * GIB
    _, output = nearkv_size("llama2_7b", "--context", 32768)
    assert "beyond the 4096 tokens that the model was published with" in output.out
    assert "beyond" not in nearkv_size("llama2_7b")[1].out


def test_grouped_heads_share_their_cache(nearkv_size):
    _, output = nearkv_size("llama3_70b", "--context", 8192, "--format", "json")
    found = content(output)
    assert found["query_heads_per_kv_head"] == 8
    assert found["kv_bytes"] == 2 * 80 * 8 * 128 * 2 * 8192
    assert found["kv_bytes_if_heads_not_shared"] == 8 * found["kv_bytes"]


def test_what_tiering_adds():
    found = cache_size(named_model("llama3_8b").config, 1000, 2)
    streams = 32 * 8 * 2
    assert found["hit_rate_table_bytes"] == 2 * streams * 1000
    assert found["key_blocks"] == {
        "blocks": 7 * streams,
        "plane_bytes": 7 * streams * 128 * 128,
        "table_bytes": 7 * streams * 5 * 128,
        "tail_tokens": 1000 - 7 * 128,
    }


def test_the_split_and_its_limits():
    machine, shape = open_machine("hillinfer"), named_model("llama2_7b").config
    split = tier_split(machine, shape, 32768, 8)
    assert split["fits"]
    assert sum(tier["kv_bytes"] for tier in split["tiers"]) == shape.kv_bytes(32768, 8)
    assert [tier["tier"] for tier in split["tiers"] if tier["weight_bytes"]] == ["gpu_memory"]
    assert split["largest_batch"] >= 8
    for context, fits in (
        (split["longest_context_tokens"], True),
        (split["longest_context_tokens"] + 1, False),
    ):
        assert tier_split(machine, shape, context, 8)["fits"] is fits
    for batch, fits in ((split["largest_batch"], True), (split["largest_batch"] + 1, False)):
        assert tier_split(machine, shape, 32768, batch)["fits"] is fits


def test_weights_that_do_not_fit_leave_no_room():
    split = tier_split(open_machine("pam_deployment"), named_model("opt_175b").config, 1, 1)
    assert not split["fits"]
    assert split["weight_bytes_left"] > 0
    assert (split["longest_context_tokens"], split["largest_batch"]) == (0, 0)


def test_table(nearkv_size):
    code, output = nearkv_size("llama3_70b", "--machine", "pam", "--batch", 16)
    assert code == 0
    assert "KV cache" in output.out
    assert "pam holds it" in output.out
    assert output.out.count("%") == len(open_machine("pam").description.tiers)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope",), "nope"),
        (("llama2_7b", "--context", 0), "context is 0; allowed: a whole number from 1"),
        (("llama2_7b", "--batch", -1), "batch is -1; allowed: a whole number from 1"),
        (("llama2_7b", "--machine", "nope"), "machine is 'nope'"),
    ],
)
def test_bad_input_is_one_line(nearkv_size, words, message):
    code, output = nearkv_size(*words)
    assert code == 2
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1
