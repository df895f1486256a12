"""Small traces, damaged files and the command line, for the tests of this folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, safe_open, save_file

from nearkv import cli
from nearkv.commands.trace import COMMAND
from nearkv.trace.format import AttentionTrace, HeadStream, ModelSource, TextSource, TraceHeader, write_trace

# Sizes of the tiny model, and a text of a few hundred tokens for it.
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 3, 32, 4, 2, 8, 48
TEXT = "It is a truth universally acknowledged, in 1813 as now.\n" * 20
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
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"trace": COMMAND})

    def run(*words: object) -> Outcome:
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def byte_symbols() -> list[str]:
    """The printable stand-ins of the 256 bytes in byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 400))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


@dataclass
class TinyModel:
    """Random weights in GGUF's own row order, and the metadata, both open to a test's changes."""

    weights: dict[str, np.ndarray]
    metadata: dict[str, Any]
    text: str

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(path, self.metadata["general.architecture"])
        for key, value in self.metadata.items():
            if key == "general.architecture":
                continue
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
        for name, weight in self.weights.items():
            writer.add_tensor(name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


@pytest.fixture
def tiny() -> TinyModel:
    random = np.random.default_rng(11)
    tokens = ["<|endoftext|>", *byte_symbols(), "th", "Ġt", "Ġth"]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

    def gain() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(HIDDEN)).astype(np.float32)

    weights = {"token_embd.weight": matrix(len(tokens), HIDDEN) * 4, "output_norm.weight": gain()}
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }
        weights |= {f"blk.{layer}.{name}.weight": matrix(*shape) * 2 for name, shape in shapes.items()}
        weights |= {f"blk.{layer}.{name}.weight": gain() for name in ("attn_norm", "ffn_norm")}
    metadata = {
        "general.architecture": "llama",
        "general.license": "cc0-1.0",
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.context_length": 512,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 500.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": ["t h", "Ġ t", "Ġ th"],
    }
    return TinyModel(weights, metadata, TEXT)


@pytest.fixture
def capture(tmp_path: Path, nearkv: Callable) -> Callable:
    """Run `nearkv trace capture` on a model over TEXT; options override the defaults."""

    def run(model: TinyModel, *flags: str, text: str = TEXT, **options: object) -> Any:
        path = model.write(tmp_path / "tiny.gguf")
        (tmp_path / "text.txt").write_text(text)
        words = {"context-tokens": 300, "layers": "0,2", "kv-heads": "0:1,2:0,2:1", "queries": 5}
        words |= {name.replace("_", "-"): value for name, value in options.items()}
        pairs = [word for name, value in words.items() for word in (f"--{name}", value)]
        files = ["--model", path, "--text", tmp_path / "text.txt", "--output", tmp_path / "trace"]
        return nearkv("trace", "capture", *files, *pairs, *flags)

    return run
