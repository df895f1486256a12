"""Exact-merge attention in integers against plain float32 attention of the same shape."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.measure import median_cpu_seconds
from benchmarks.registry import Table
from nearkv_sim.golden.attention import attend_exact

_HEADS, _TOKENS, _HEAD_DIM = 8, 32768, 128


def measure() -> Table:
    """Eight query heads over one KV head's rows; both phases of the golden model, without the division."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((_HEADS, _HEAD_DIM)).astype(np.float16)
    keys, values = rng.standard_normal((2, _TOKENS, _HEAD_DIM)).astype(np.float16)
    query32, keys32, values32 = (array.astype(np.float32) for array in (query, keys, values))

    def plain():
        scores = query32 @ keys32.T / math.sqrt(_HEAD_DIM)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights @ values32 / weights.sum(axis=1, keepdims=True)

    def golden():
        return attend_exact(query, keys, values)

    seconds = median_cpu_seconds({"float32 attention": plain, "golden attention": golden}, repeats=5)
    rows = [
        {
            "what": name,
            "CPU-ms": spent * 1e3,
            "speed against float32": seconds["float32 attention"] / spent,
        }
        for name, spent in seconds.items()
    ]
    return Table(f"Exact attention, {_HEADS} heads, {_TOKENS:,} tokens, head_dim {_HEAD_DIM}", rows)
