"""What an attention trace holds, as plain values for people and programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv.trace.format import AttentionTrace, HeadStream


def summarise(trace: AttentionTrace) -> dict[str, Any]:
    """The header's JSON object plus `streams`: per stream its name, peaks and the first token's share.

    `first_token_mass` is the share (0…1) of attention that the queries give to token 0, averaged over query
    heads and steps: large where the head uses it as a sink.
    """
    streams = [
        {
            "name": stream.name,
            "layer": stream.layer,
            "kv_head": stream.kv_head,
            "key_abs_max": float(np.abs(stream.key).max()),
            "value_abs_max": float(np.abs(stream.value).max()),
            "query_abs_max": float(np.abs(stream.query).max()),
            "first_token_mass": float(attention_mass(stream, trace.first_query_position)[:, :, 0].mean()),
        }
        for stream in trace.streams
    ]
    return {**trace.header.to_json(), "streams": streams}


def attention_mass(stream: HeadStream, first_query_position: int) -> NDArray[np.float32]:
    """Causal softmax weights, float32 [query_group, steps, context_tokens]; each row adds up to 1."""
    steps = stream.query.shape[1]
    key, query = stream.key.astype(np.float32), stream.query.astype(np.float32)
    logits = query @ key.T / np.float32(math.sqrt(key.shape[1]))
    position = first_query_position + np.arange(steps)
    logits[:, np.arange(len(key)) > position[:, None]] = -np.inf
    logits -= logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)
