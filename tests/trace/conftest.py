"""Small traces, damaged files and the command line, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, safe_open, save_file

from nearkv import cli
from nearkv.commands.trace import COMMAND
from nearkv.trace.format import AttentionTrace, HeadStream, ModelSource, TextSource, TraceHeader, write_trace

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"


@pytest.fixture(scope="session")
def fixture_path() -> Path:
    return FIXTURE


@pytest.fixture
def trace() -> AttentionTrace:
    """Layers 2 (KV head 0) and 12 (KV heads 1, 2); 40 tokens of 8 elements; 3 query heads, 5 steps."""
    header = TraceHeader(
        model=ModelSource("random", "CC0-1.0", "sha256:" + "1" * 64),
        text=TextSource("none", "CC0-1.0", "2" * 64),
        layers=(2, 12),
        kv_heads=((0,), (1, 2)),
        query_group=3,
        head_dim=8,
        context_tokens=40,
        first_query_position=30,
        steps=5,
        command="made by a test",
    )
    random = np.random.default_rng(7)

    def rows(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float16)

    streams = [HeadStream(*key, rows(40, 8), rows(40, 8), rows(3, 5, 8)) for key in header.stream_keys()]
    return AttentionTrace(header, tuple(streams))


@pytest.fixture
def damaged(tmp_path: Path, trace: AttentionTrace) -> Callable[..., Path]:
    """Writes a good trace, lets `edit(header, tensors)` spoil it, and gives the spoiled file's path.

    `edit` may return a text that replaces the whole header.
    """

    def make(edit: Callable[[dict[str, Any], dict[str, np.ndarray]], str | None]) -> Path:
        good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
        write_trace(good, trace)
        with safe_open(good, framework="np") as file:
            header = json.loads(file.metadata()["nearkv"])
        tensors = dict(load_file(good))
        text = edit(header, tensors)
        save_file(tensors, bad, metadata={"nearkv": json.dumps(header) if text is None else text})
        return bad

    return make


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def nearkv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command line with `trace` alone, so that other commands' imports cost nothing here."""
    monkeypatch.setattr(cli, "load_commands", lambda: {"trace": COMMAND})

    def run(*words: object) -> Outcome:
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
