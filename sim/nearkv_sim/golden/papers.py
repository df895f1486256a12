"""The papers' hierarchical attention in float64: Algorithm 1 as printed, and with the linear sum it needs.

A yardstick only: it shows what the printed text computes and how far that is from attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class FloatPartial:
    """m, l and O of one shard and one query head."""

    maximum: float
    total: float
    output: Float64


def local_attention(scores: Float64, values: Float64) -> FloatPartial:
    """LocalAttention: m = max s, l = Σ e^(s−m), O = Σ e^(s−m)·v. No 1/√d is printed; scores come scaled."""
    maximum = float(scores.max())
    weights = np.exp(scores - maximum)
    return FloatPartial(maximum, float(weights.sum()), weights @ values)


def reduction(partials: Sequence[FloatPartial], *, printed: bool) -> FloatPartial:
    """Reduction of one level.

    Args:
        partials: of the level below.
        printed: return l = m + log Σ, as Algorithm 1 does, although its next level and its final O / l
            read l as a linear sum; False keeps l linear.

    """
    maximum = max(p.maximum for p in partials)
    factors = [float(np.exp(p.maximum - maximum)) for p in partials]
    total = sum(f * p.total for f, p in zip(factors, partials, strict=True))
    output = np.sum([f * p.output for f, p in zip(factors, partials, strict=True)], axis=0)
    return FloatPartial(maximum, maximum + float(np.log(total)) if printed else total, output)


def hierarchical_attention(
    scores: Float64, values: Float64, fan_ins: Sequence[int], *, printed: bool
) -> Float64:
    """Attention over equal shards, reduced level by level, O / l at the end."""
    shards = int(np.prod(fan_ins))
    level = [
        local_attention(s, v)
        for s, v in zip(np.array_split(scores, shards), np.array_split(values, shards), strict=True)
    ]
    for fan_in in fan_ins:
        level = [reduction(level[i : i + fan_in], printed=printed) for i in range(0, len(level), fan_in)]
    result: Float64 = level[0].output / level[0].total
    return result
