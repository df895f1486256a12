"""A llama-architecture decoder in numpy, float32, fed from a GGUF file one layer at a time.

The whole text goes through layer 0, then through layer 1, and so on: only one layer's weights and one
layer's keys and values are in memory, whatever the size of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
# A weight by its GGUF name; the second argument picks rows.
WeightLoader = Callable[[str, NDArray[np.int64] | None], Float32Array]

# Without `blk.N.` and `.weight`.
LAYER_WEIGHTS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)
# A guess among 2^32 tokens costs 22 nats; only broken weights come near this.
MAX_LOSS = 100.0
# Tokens that attend at once: bounds the score matrix to heads · CHUNK · context floats.
CHUNK = 256


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and constants of the model, from GGUF metadata; refuses what this decoder does not compute."""

    layers: int
    query_heads: int
    kv_heads: int
    hidden: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    rope_base: float
    norm_epsilon: float
    max_context_tokens: int

    @property
    def query_group(self) -> int:
        """Query heads that share one KV head."""
        return self.query_heads // self.kv_heads

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> LlamaConfig:
        """Read the configuration; ValueError names what is missing or not supported."""
        architecture = metadata.get("general.architecture")
        if architecture != "llama":
            raise ValueError(f"architecture {architecture!r} is not supported; supported: 'llama'")
        scaling = metadata.get("llama.rope.scaling.type", "none")
        if scaling != "none":
            raise ValueError(f"rotary embedding scaling {scaling!r} is not supported; supported: 'none'")

        def count(name: str, default: int | None = None) -> int:
            value = metadata.get(f"llama.{name}", default)
            if type(value) is not int or value < 1:
                raise ValueError(f"llama.{name} is {value!r}; allowed: one positive integer")
            return value

        hidden, query_heads = count("embedding_length"), count("attention.head_count")
        config = cls(
            layers=count("block_count"),
            query_heads=query_heads,
            kv_heads=count("attention.head_count_kv", query_heads),
            hidden=hidden,
            head_dim=count("attention.key_length", hidden // query_heads),
            feed_forward=count("feed_forward_length"),
            vocabulary=len(metadata.get("tokenizer.ggml.tokens", ())),
            rope_base=float(metadata.get("llama.rope.freq_base", 10000.0)),
            norm_epsilon=float(metadata.get("llama.attention.layer_norm_rms_epsilon", 1e-5)),
            max_context_tokens=count("context_length"),
        )
        if config.query_heads % config.kv_heads:
            raise ValueError(
                f"{config.query_heads} query heads do not share {config.kv_heads} KV heads evenly"
            )
        rotated = count("rope.dimension_count", config.head_dim)
        if rotated != config.head_dim or rotated % 2:
            raise ValueError(
                f"rotary dimensions {rotated} differ from head_dim {config.head_dim}, or are odd"
            )
        return config

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape (rows first) of every weight this decoder uses, by GGUF name.

        `output.weight` may be absent: the embedding then serves twice.
        """
        query_width, kv_width = self.query_heads * self.head_dim, self.kv_heads * self.head_dim
        vector, up = (self.hidden,), (self.feed_forward, self.hidden)
        layer_shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": vector,
            "attn_q": (query_width, self.hidden),
            "attn_k": (kv_width, self.hidden),
            "attn_v": (kv_width, self.hidden),
            "attn_output": (self.hidden, query_width),
            "ffn_norm": vector,
            "ffn_gate": up,
            "ffn_up": up,
            "ffn_down": (self.hidden, self.feed_forward),
        }
        shapes = {
            f"blk.{i}.{part}.weight": layer_shapes[part] for i in range(self.layers) for part in LAYER_WEIGHTS
        }
        vocabulary = (self.vocabulary, self.hidden)
        return shapes | {
            "token_embd.weight": vocabulary,
            "output_norm.weight": vector,
            "output.weight": vocabulary,
        }


@dataclass(frozen=True)
class LayerAttention:
    """Queries, keys and values of one layer after the rotary embedding, float32, not scaled by 1/√head_dim.

    `query` is [kv_heads, query_group, tokens, head_dim]; `key` and `value` are [kv_heads, tokens, head_dim].
    """

    layer: int
    query: Float32Array
    key: Float32Array
    value: Float32Array


def run_layers(
    config: LlamaConfig,
    weight: WeightLoader,
    token_ids: NDArray[np.int64],
    last_layer: int,
    observe: Callable[[LayerAttention], None],
    finish: bool,
    restrict: Callable[[LayerAttention], NDArray[np.bool_]] | None = None,
) -> Float32Array:
    """Run layers 0…last_layer over the tokens and call `observe` with each layer's queries, keys, values.

    `restrict` says what the last tokens attend instead of everything before them: bool [kv_heads, last
    tokens, tokens], at least one for each. Returns the hidden state, float32 [tokens, hidden]: the last
    layer's output, or, without `finish`, its input, which spares that layer's attention and feed-forward.
    """
    hidden = weight("token_embd.weight", token_ids)
    cosine, sine = _rotation(config, len(token_ids))
    for layer in range(last_layer + 1):
        w = {part: weight(f"blk.{layer}.{part}.weight", None) for part in LAYER_WEIGHTS}
        normed = rms_norm(hidden, w["attn_norm"], config.norm_epsilon)
        query = _rotate(_project_heads(normed, w["attn_q"], config, config.query_heads), cosine, sine)
        attention = LayerAttention(
            layer=layer,
            query=query.reshape(config.kv_heads, config.query_group, len(token_ids), config.head_dim),
            key=_rotate(_project_heads(normed, w["attn_k"], config, config.kv_heads), cosine, sine),
            value=(normed @ w["attn_v"].T).reshape(len(token_ids), config.kv_heads, -1).transpose(1, 0, 2),
        )
        observe(attention)
        allowed = None if restrict is None else restrict(attention)
        if layer == last_layer and not finish:
            break
        for start in range(0, len(token_ids), CHUNK):
            rows = slice(start, min(start + CHUNK, len(token_ids)))
            hidden[rows] += _attend(attention, rows, allowed) @ w["attn_output"].T
            normed = rms_norm(hidden[rows], w["ffn_norm"], config.norm_epsilon)
            gate = normed @ w["ffn_gate"].T
            with np.errstate(over="ignore"):  # exp overflows to inf where the gate is shut: the limit is 0
                gate /= 1 + np.exp(-gate)
            hidden[rows] += (gate * (normed @ w["ffn_up"].T)) @ w["ffn_down"].T
    return hidden


def perplexity(
    config: LlamaConfig, weight: WeightLoader, hidden: Float32Array, token_ids: NDArray[np.int64], tied: bool
) -> float:
    """exp of the mean negative log-likelihood of tokens 1…n−1, each given all tokens before it.

    `hidden` is the last layer's output, float32 [tokens, hidden]; `tied` says that the embedding is the
    output matrix as well. Raises ValueError where the loss shows broken weights.
    """
    return math.exp(float(losses(config, weight, hidden[:-1], token_ids[1:], tied).mean()))


def losses(
    config: LlamaConfig, weight: WeightLoader, hidden: Float32Array, targets: NDArray[np.int64], tied: bool
) -> NDArray[np.float64]:
    """Negative log-likelihood in nats of each target, given the last layer's output before it.

    `hidden` is float32 [targets, hidden]; `tied` and errors as of `perplexity`.
    """
    output = weight("token_embd.weight" if tied else "output.weight", None)
    normed = rms_norm(hidden, weight("output_norm.weight", None), config.norm_epsilon)
    found = np.empty(len(normed))
    for start in range(0, len(normed), CHUNK):
        chunk = slice(start, start + CHUNK)
        logits = normed[chunk] @ output.T
        peak = logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits - peak).sum(axis=1, dtype=np.float64)) + peak[:, 0]
        found[chunk] = log_sum - logits[np.arange(len(logits)), targets[chunk]]
    if not (loss := float(found.mean())) < MAX_LOSS:
        raise ValueError(f"the mean loss is {loss:g} nats per token: the model's weights are damaged")
    return found


def rms_norm(x: Float32Array, gain: Float32Array, epsilon: float) -> Float32Array:
    """Root-mean-square normalisation of the last axis, float32."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon))
    return np.asarray(x * scale * gain, dtype=np.float32)


def _rotation(config: LlamaConfig, tokens: int) -> tuple[Float32Array, Float32Array]:
    half = np.arange(config.head_dim // 2)
    # float64 up to here: a position of 8,191 times a frequency loses digits in float32.
    angle = np.outer(np.arange(tokens), config.rope_base ** (-2.0 * half / config.head_dim))
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _project_heads(
    normed: Float32Array, weight: Float32Array, config: LlamaConfig, heads: int
) -> Float32Array:
    """Project to [heads, tokens, head_dim], rows in the order of the original checkpoint.

    GGUF stores the query and key rows of llama models with the two halves of each head interleaved;
    undone here, keys equal those that other runtimes hold for the original checkpoint.
    """
    halves = weight.reshape(heads, config.head_dim // 2, 2, config.hidden).swapaxes(1, 2)
    projected = normed @ halves.reshape(heads * config.head_dim, config.hidden).T
    return projected.reshape(len(normed), heads, config.head_dim).transpose(1, 0, 2)


def _rotate(x: Float32Array, cosine: Float32Array, sine: Float32Array) -> Float32Array:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _attend(attention: LayerAttention, rows: slice, allowed: NDArray[np.bool_] | None) -> Float32Array:
    """Causal softmax attention of the tokens `rows`, as [len(rows), query_heads · head_dim]."""
    kv_heads, group, tokens, head_dim = attention.query.shape
    count = rows.stop - rows.start
    # Positions inside the chunk see only the past; earlier keys are visible to all of it.
    future = np.triu(np.full((count, count), -np.inf, dtype=np.float32), 1)
    out = np.empty((count, kv_heads, group, head_dim), dtype=np.float32)
    for head in range(kv_heads):
        query = attention.query[head, :, rows] * np.float32(1 / math.sqrt(head_dim))
        scores = query @ attention.key[head, : rows.stop].T
        scores[:, :, rows] += future
        if allowed is not None and (last := rows.stop - (tokens - allowed.shape[1])) > 0:
            some = min(last, count)  # rows of this chunk that are restricted: its last ones
            scores[:, count - some :][:, ~allowed[head, last - some : last, : rows.stop]] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        out[:, head] = (scores @ attention.value[head, : rows.stop]).transpose(1, 0, 2)
    return out.reshape(count, kv_heads * group * head_dim)
