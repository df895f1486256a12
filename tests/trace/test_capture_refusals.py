"""Models, texts and requests that the capture refuses: one line, exit code 2, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


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
    tiny: Any, capture: Callable, tmp_path: Path, metadata: dict[str, Any], reason: str
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
    tiny: Any, capture: Callable, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    outcome = capture(tiny, **options)
    assert outcome.code == 2
    assert reason in outcome.err
    assert not (tmp_path / "trace").exists()


def test_model_with_a_bias(tiny: Any, capture: Callable) -> None:
    tiny.weights["blk.0.attn_q.bias"] = np.zeros(32, np.float32)
    assert "tensor blk.0.attn_q.bias is not part of a plain llama decoder" in capture(tiny).err


def test_byte_without_a_token(tiny: Any, capture: Callable) -> None:
    tiny.metadata["tokenizer.ggml.tokens"][1 + ord("z")] = "unused"
    assert "byte 0x7a" in capture(tiny, text=tiny.text + "z").err


def test_damaged_vocabulary(tiny: Any, capture: Callable) -> None:
    tiny.metadata["tokenizer.ggml.merges"][0] = "t missing"
    assert "vocabulary and merges do not fit together" in capture(tiny).err


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_damaged_weights(tiny: Any, capture: Callable, tmp_path: Path, value: float) -> None:
    tiny.weights["output_norm.weight"][3] = value
    outcome = capture(tiny, "--perplexity")
    assert outcome.code == 2
    assert "the model's weights are damaged" in outcome.err
    assert not (tmp_path / "trace").exists()


def test_value_beyond_float16(tiny: Any, capture: Callable) -> None:
    tiny.weights["blk.0.attn_v.weight"] *= 1e6
    assert "layer 0, KV head 1" in (err := capture(tiny).err)
    assert "does not fit float16" in err
