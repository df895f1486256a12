"""`nearkv trace info`, and that every refusal is one line, exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nearkv.trace.format import AttentionTrace, write_trace

CAPTURE = {
    "--model": "model.gguf",
    "--text": "text.txt",
    "--context-tokens": 8,
    "--layers": "0",
    "--kv-heads": "0",
    "--queries": 4,
    "--output": "out.safetensors",
}


def test_info_json(tmp_path: Path, trace: AttentionTrace, nearkv: Callable) -> None:
    path = tmp_path / "a.safetensors"
    write_trace(path, trace)
    outcome = nearkv("trace", "info", path, "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    info = json.loads(outcome.out)
    assert info["file"] == str(path)
    assert info["size_bytes"] == path.stat().st_size
    assert info["layers"] == [2, 12]
    assert info["kv_heads"] == [[0], [1, 2]]
    assert info["query_positions"] == {"first": 30, "count": 5}
    assert len(info["sha256"]) == 64
    names = [stream["name"] for stream in info["streams"]]
    assert names == ["L2.H0", "L12.H1", "L12.H2"]
    assert all(0 < stream["first_token_mass"] < 1 for stream in info["streams"])


def test_info_table(fixture_path: Path, nearkv: Callable) -> None:
    outcome = nearkv("trace", "info", fixture_path)
    assert outcome.code == 0
    assert "model.name             SmolLM2-135M-Instruct.Q4_1\n" in outcome.out
    assert [line.split()[0] for line in outcome.out.splitlines()[-4:]] == [
        "L2.H0",
        "L12.H0",
        "L20.H0",
        "L29.H0",
    ]


def test_info_of_a_bad_file(tmp_path: Path, nearkv: Callable) -> None:
    path = tmp_path / "a.safetensors"
    for content, reason in ((None, "No such file"), (b"", "truncated"), (b"x" * 50, "truncated")):
        if content is not None:
            path.write_bytes(content)
        outcome = nearkv("trace", "info", path)
        assert (outcome.code, outcome.out) == (2, "")
        assert reason in outcome.err
        assert str(path) in outcome.err
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "model.gguf: not a GGUF file"),
        ({"--model": "none.gguf"}, "No such file"),
        ({"--model": "cut.gguf"}, "truncated or damaged GGUF file"),
        ({"--text": "none.txt"}, "No such file"),
        ({"--text": "latin1.txt"}, "latin1.txt: not UTF-8"),
        ({"--output": "text.txt"}, "text.txt: exists already"),
        ({"--output": "none/out"}, "the folder none does not exist"),
        ({"--layers": "0,x"}, "--layers '0,x' is not a list of integers"),
        ({"--kv-heads": ""}, "--kv-heads '' is not a list of integers"),
        ({"--kv-heads": "0:0,1"}, "--kv-heads '1' is not LAYER:HEAD"),
        ({"--kv-heads": "3:0"}, "layer 3 is not among --layers"),
        ({"--queries": 9}, "9 queries; allowed: 1…8"),
        ({"--queries": 0}, "0 queries; allowed: 1…8"),
        ({"--context-tokens": 0}, "context"),
    ],
)
def test_capture_refusals(
    options: dict[str, object],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nearkv: Callable,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").write_bytes(b"no model")
    Path("cut.gguf").write_bytes(b"GGUF\3\0\0\0\1\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0rest")
    Path("text.txt").write_text("text")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    words = [word for pair in (CAPTURE | options).items() for word in pair]
    outcome = nearkv("trace", "capture", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert reason in outcome.err
    assert outcome.err.startswith("nearkv trace: error: ")
    assert outcome.err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_capture_without_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nearkv: Callable) -> None:
    monkeypatch.setattr("nearkv.trace.source.find_spec", lambda name: None if name == "tokenizers" else name)
    monkeypatch.chdir(tmp_path)
    outcome = nearkv("trace", "capture", *[word for pair in CAPTURE.items() for word in pair])
    assert outcome.code == 2
    assert "needs tokenizers, which the extra `capture` installs: pip install -e '.[capture]'" in outcome.err
