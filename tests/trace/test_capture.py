"""The capture on a tiny GGUF model, against a float64 reference written another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from nearkv.trace.format import read_trace
from nearkv.trace.tokens import encode

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 3, 32, 4, 2, 8, 48
CONTEXT, QUERIES, BASE, EPSILON = 300, 5, 500.0, 1e-5  # more than one chunk of the capture
TEXT = "It is a truth universally acknowledged, in 1813 as now.\n" * 20


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
        "llama.attention.layer_norm_rms_epsilon": EPSILON,
        "llama.rope.freq_base": BASE,
        "llama.rope.dimension_count": HEAD_DIM,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": ["t h", "Ġ t", "Ġ th"],
    }
    return TinyModel(weights, metadata)


def reference(model: TinyModel, ids: list[int]) -> tuple[list[dict[str, np.ndarray]], float]:
    """Each layer's q, k, v as [heads, tokens, head_dim], and the perplexity; float64, token by token.

    Works in GGUF's row order, rotating neighbouring pairs as complex numbers, and reorders at the end.
    """
    w = {name: weight.astype(np.float64) for name, weight in model.weights.items()}
    count = len(ids)
    frequency = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turn = np.exp(1j * np.arange(count)[:, None] * frequency)

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * gain

    def rotate(x: np.ndarray) -> np.ndarray:
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    def heads_first(x: np.ndarray) -> np.ndarray:
        return x.reshape(count, -1, HEAD_DIM).transpose(1, 0, 2)

    def halves(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)

    x, layers = w["token_embd.weight"][ids], []
    for layer in range(LAYERS):
        part = {name.split(".")[2]: w[name] for name in w if name.startswith(f"blk.{layer}.")}
        h = norm(x, part["attn_norm"])
        q, k = (rotate(heads_first(h @ part[name].T)) for name in ("attn_q", "attn_k"))
        v = heads_first(h @ part["attn_v"].T)
        layers.append({"query": halves(q), "key": halves(k), "value": v})
        attended = np.zeros((count, HEADS, HEAD_DIM))
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            for t in range(count):
                logits = k[shared, : t + 1] @ q[head, t] / math.sqrt(HEAD_DIM)
                weight = np.exp(logits - logits.max())
                attended[t, head] = weight @ v[shared, : t + 1] / weight.sum()
        x = x + attended.reshape(count, -1) @ part["attn_output"].T
        h = norm(x, part["ffn_norm"])
        gate = h @ part["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part["ffn_up"].T)) @ part["ffn_down"].T
    logits = norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
    loss = np.log(np.exp(logits).sum(-1))[:-1] - logits[np.arange(count - 1), ids[1:]]
    return layers, math.exp(loss.mean())


@pytest.fixture
def capture(tmp_path: Path, nearkv: Callable) -> Callable:
    """Run `nearkv trace capture` on a model over TEXT; options override the defaults."""

    def run(model: TinyModel, *flags: str, text: str = TEXT, **options: object) -> Any:
        path = model.write(tmp_path / "tiny.gguf")
        (tmp_path / "text.txt").write_text(text)
        words = {"context-tokens": CONTEXT, "layers": "0,2", "kv-heads": "0:1,2:0,2:1", "queries": QUERIES}
        words |= {name.replace("_", "-"): value for name, value in options.items()}
        pairs = [word for name, value in words.items() for word in (f"--{name}", value)]
        files = ["--model", path, "--text", tmp_path / "text.txt", "--output", tmp_path / "trace"]
        return nearkv("trace", "capture", *files, *pairs, *flags)

    return run


@pytest.mark.parametrize("tied", [True, False])
def test_against_reference(tiny: TinyModel, capture: Callable, tmp_path: Path, tied: bool) -> None:
    if not tied:
        tiny.weights["output.weight"] = tiny.weights["token_embd.weight"][::-1].copy() / 2
    outcome = capture(tiny, "--perplexity", "--no-progress", text_licence="CC0-1.0")
    assert (outcome.code, outcome.err) == (0, "")
    layers, perplexity = reference(tiny, encode(tiny.metadata, TEXT)[:CONTEXT])
    assert float(outcome.out.rsplit(" ", 1)[1]) == pytest.approx(perplexity, rel=1e-5)
    trace = read_trace(tmp_path / "trace")
    assert [stream.name for stream in trace.streams] == ["L0.H1", "L2.H0", "L2.H1"]
    assert (trace.query_group, trace.first_query_position, trace.steps) == (2, CONTEXT - QUERIES, QUERIES)
    assert trace.header.model.name == "tiny"
    assert trace.header.model.licence == "cc0-1.0"
    assert str(tmp_path) not in trace.header.command
    for stream in trace.streams:
        expected, group = layers[stream.layer], slice(stream.kv_head * 2, stream.kv_head * 2 + 2)
        close = {"rtol": 2**-10, "atol": 1e-4}  # half a float16 step, doubled for values at its edge
        np.testing.assert_allclose(stream.key.astype(float), expected["key"][stream.kv_head], **close)
        np.testing.assert_allclose(stream.value.astype(float), expected["value"][stream.kv_head], **close)
        np.testing.assert_allclose(stream.query.astype(float), expected["query"][group, -QUERIES:], **close)


def test_same_inputs_give_the_same_bytes(tiny: TinyModel, capture: Callable, tmp_path: Path) -> None:
    capture(tiny)
    first = (tmp_path / "trace").read_bytes()
    (tmp_path / "trace").unlink()
    capture(tiny, "--perplexity")  # runs more, keeps the same
    assert (tmp_path / "trace").read_bytes() == first


def test_pre_tokeniser(tiny: TinyModel) -> None:
    names = tiny.metadata["tokenizer.ggml.tokens"]

    def split(text: str) -> list[str]:
        return [names[i] for i in encode(tiny.metadata, text)]

    assert split("a the 1th<|endoftext|>") == ["a", "Ġth", "e", "Ġ", "1", "th", "<|endoftext|>"]
    tiny.metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
    assert split("é") == ["<|endoftext|>", "Ã", "©"]


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'qwen2' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary embedding scaling 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 4}, "rotary dimensions 4"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads do not share 3 KV heads"),
        ({"llama.attention.head_count_kv": [2, 2, 1]}, "llama.attention.head_count_kv is [2, 2, 1]"),
        ({"llama.block_count": 4}, "no tensor blk.3.attn_norm.weight"),
        ({"llama.feed_forward_length": 64}, "tensor blk.0.ffn_gate.weight has shape (48, 32)"),
        ({"tokenizer.ggml.model": "llama"}, "tokeniser 'llama' is not supported"),
        ({"tokenizer.ggml.pre": "qwen2"}, "pre-tokeniser 'qwen2' is not supported"),
    ],
)
def test_unsupported_model(
    tiny: TinyModel, capture: Callable, tmp_path: Path, metadata: dict[str, Any], reason: str
) -> None:
    tiny.metadata |= metadata
    outcome = capture(tiny)
    assert outcome.code == 2
    assert reason in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"layers": "0,3", "kv_heads": "0"}, "layer 3 is out of range; allowed: 0…2"),
        ({"layers": "2,0", "kv_heads": "0"}, "layers is unsorted: 0 follows 2"),
        ({"kv_heads": "0,2"}, "KV head 2 is out of range; allowed: 0…1"),
        ({"kv_heads": "0:0"}, "kv_heads of layer 2 is empty"),
        ({"context_tokens": 513}, "context of 513 tokens; allowed: 1…512"),
        ({"context_tokens": 500, "text": "short"}, "the text has 5 tokens, asked for 500"),
    ],
)
def test_unsupported_request(
    tiny: TinyModel, capture: Callable, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    outcome = capture(tiny, **options)
    assert outcome.code == 2
    assert reason in outcome.err
    assert not (tmp_path / "trace").exists()


def test_model_with_a_bias(tiny: TinyModel, capture: Callable) -> None:
    tiny.weights["blk.0.attn_q.bias"] = np.zeros(HEADS * HEAD_DIM, np.float32)
    assert "tensor blk.0.attn_q.bias is not part of a plain llama decoder" in capture(tiny).err


def test_byte_without_a_token(tiny: TinyModel, capture: Callable) -> None:
    tiny.metadata["tokenizer.ggml.tokens"][1 + ord("z")] = "unused"
    assert "byte 0x7a" in capture(tiny, text=TEXT + "z").err


def test_damaged_vocabulary(tiny: TinyModel, capture: Callable) -> None:
    tiny.metadata["tokenizer.ggml.merges"][0] = "t missing"
    assert "vocabulary and merges do not fit together" in capture(tiny).err


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_damaged_weights(tiny: TinyModel, capture: Callable, tmp_path: Path, value: float) -> None:
    tiny.weights["output_norm.weight"][3] = value
    outcome = capture(tiny, "--perplexity")
    assert outcome.code == 2
    assert "the model's weights are damaged" in outcome.err
    assert not (tmp_path / "trace").exists()


def test_value_beyond_float16(tiny: TinyModel, capture: Callable) -> None:
    tiny.weights["blk.0.attn_v.weight"] *= 1e6
    assert "layer 0, KV head 1" in (err := capture(tiny).err)
    assert "does not fit float16" in err


def test_quantised_weights(tiny: TinyModel, capture: Callable, tmp_path: Path) -> None:
    """Rows of a block-quantised embedding are picked before they are dequantised."""
    from gguf.quants import dequantize, quantize

    kind = GGMLQuantizationType.Q8_0
    packed = quantize(tiny.weights["token_embd.weight"], kind)
    tiny.weights["token_embd.weight"] = dequantize(packed, kind)
    capture(tiny)
    plain = read_trace(tmp_path / "trace")
    (tmp_path / "trace").unlink()
    original = GGUFWriter.add_tensor

    def add(self: GGUFWriter, name: str, weight: np.ndarray) -> None:
        if name == "token_embd.weight":
            original(self, name, packed, raw_dtype=kind)
        else:
            original(self, name, weight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFWriter, "add_tensor", add)
        capture(tiny)
    assert read_trace(tmp_path / "trace").header.sha256 == plain.header.sha256
