"""The capture on a tiny GGUF model, against a float64 reference written another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from nearkv.trace.format import read_trace
from nearkv.trace.tokens import encode

CONTEXT, QUERIES = 300, 5  # the context is longer than one chunk of the capture


def reference(model: Any, ids: list[int]) -> tuple[list[dict[str, np.ndarray]], float]:
    """Each layer's q, k, v as [heads, tokens, head_dim], and the perplexity; float64, token by token.

    Works in GGUF's row order, rotating neighbouring pairs as complex numbers, and reorders at the end.
    """
    w = {name: weight.astype(np.float64) for name, weight in model.weights.items()}
    count = len(ids)
    layer_count, head_count, kv_heads, head_dim, base, epsilon = (
        model.metadata[f"llama.{key}"]
        for key in (
            "block_count",
            "attention.head_count",
            "attention.head_count_kv",
            "rope.dimension_count",
            "rope.freq_base",
            "attention.layer_norm_rms_epsilon",
        )
    )
    frequency = base ** (-np.arange(0, head_dim, 2) / head_dim)
    turn = np.exp(1j * np.arange(count)[:, None] * frequency)

    def norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gain

    def rotate(x: np.ndarray) -> np.ndarray:
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    def heads_first(x: np.ndarray) -> np.ndarray:
        return x.reshape(count, -1, head_dim).transpose(1, 0, 2)

    def halves(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)

    x, layers = w["token_embd.weight"][ids], []
    for layer in range(layer_count):
        part = {name.split(".")[2]: w[name] for name in w if name.startswith(f"blk.{layer}.")}
        h = norm(x, part["attn_norm"])
        q, k = (rotate(heads_first(h @ part[name].T)) for name in ("attn_q", "attn_k"))
        v = heads_first(h @ part["attn_v"].T)
        layers.append({"query": halves(q), "key": halves(k), "value": v})
        attended = np.zeros((count, head_count, head_dim))
        for head in range(head_count):
            shared = head // (head_count // kv_heads)
            for t in range(count):
                logits = k[shared, : t + 1] @ q[head, t] / math.sqrt(head_dim)
                weight = np.exp(logits - logits.max())
                attended[t, head] = weight @ v[shared, : t + 1] / weight.sum()
        x = x + attended.reshape(count, -1) @ part["attn_output"].T
        h = norm(x, part["ffn_norm"])
        gate = h @ part["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part["ffn_up"].T)) @ part["ffn_down"].T
    logits = norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
    loss = np.log(np.exp(logits).sum(-1))[:-1] - logits[np.arange(count - 1), ids[1:]]
    return layers, math.exp(loss.mean())


@pytest.mark.parametrize("tied", [True, False])
def test_against_reference(tiny: Any, capture: Callable, tmp_path: Path, tied: bool) -> None:
    if not tied:
        tiny.weights["output.weight"] = tiny.weights["token_embd.weight"][::-1].copy() / 2
    outcome = capture(tiny, "--perplexity", "--no-progress", context_tokens=CONTEXT, queries=QUERIES)
    assert (outcome.code, outcome.err) == (0, "")
    layers, perplexity = reference(tiny, encode(tiny.metadata, tiny.text)[:CONTEXT])
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


def test_same_inputs_give_the_same_bytes(tiny: Any, capture: Callable, tmp_path: Path) -> None:
    capture(tiny)
    first = (tmp_path / "trace").read_bytes()
    (tmp_path / "trace").unlink()
    capture(tiny, "--perplexity")  # runs more, keeps the same
    assert (tmp_path / "trace").read_bytes() == first


def test_pre_tokeniser(tiny: Any) -> None:
    names = tiny.metadata["tokenizer.ggml.tokens"]

    def split(text: str) -> list[str]:
        return [names[i] for i in encode(tiny.metadata, text)]

    assert split("a the 1th<|endoftext|>") == ["a", "Ġth", "e", "Ġ", "1", "th", "<|endoftext|>"]
    tiny.metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 0}
    assert split("é") == ["<|endoftext|>", "Ã", "©"]


def test_quantised_weights(tiny: Any, capture: Callable, tmp_path: Path) -> None:
    """Rows of a block-quantised embedding are picked before they are dequantised."""
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
    for quantised, stream in zip(read_trace(tmp_path / "trace").streams, plain.streams, strict=True):
        for part in ("key", "value", "query"):
            np.testing.assert_array_equal(getattr(quantised, part), getattr(stream, part), strict=True)
