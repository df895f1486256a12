"""Attention over tokens that lie in several tiers, each with a partial result of its own, by either merge.

Scores are base-2 logits: q·k·log2(e)/√d. Weights are 2^(s − M); the output is Σ w·v / Σ w.

* `ExponentialMerge` (PAM's online softmax): every tier reduces around its own maximum; partial results are
  rescaled to the common one and added. `l` stays linear between levels; Algorithm 1 as printed returns
  m + log l, reads it as l on the next level and divides by it at the end.
* `ExactMerge` (ours): tiers first agree on the maximum, then add integers, so that the output is the same to
  the bit however tokens are spread. The hardware's method in float64, not its bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.attention import Merge

Float64 = NDArray[np.float64]

# 26 fraction bits of a weight, |v| < 2^16 (FP16) and 2^20 tokens: a sum stays below 2^62.
FRACTION_BITS = 26
MOST_TOKENS = 1 << 20
MOST_VALUE = 65536.0


@dataclass(frozen=True)
class Shard:
    """One tier's tokens of one query head: base-2 logits [n] and values [n, head_dim].

    ValueError for other shapes or numbers that are not finite.
    """

    scores: Float64
    values: Float64

    def __post_init__(self) -> None:
        """Check both."""
        if self.scores.ndim != 1 or self.values.ndim != 2 or len(self.scores) != len(self.values):
            raise ValueError(
                f"scores have shape {self.scores.shape}, values {self.values.shape}; allowed: [n] and"
                " [n, head_dim]"
            )
        if not (np.isfinite(self.scores).all() and np.isfinite(self.values).all()):
            raise ValueError("scores or values are not finite; allowed: finite numbers")


class TierMerge(ABC):
    """How partial results of tiers become one."""

    @abstractmethod
    def attend(self, shards: Sequence[Shard]) -> Float64:
        """Output [head_dim] over the tokens of all shards; ValueError without any token."""


class ExponentialMerge(TierMerge):
    """Partials (m, l, o) around each tier's own maximum, rescaled and added."""

    def attend(self, shards: Sequence[Shard]) -> Float64:
        """See `TierMerge.attend`."""
        partials = [self.partial(shard) for shard in _filled(shards)]
        most = max(maximum for maximum, _, _ in partials)
        factors = [np.exp2(maximum - most) for maximum, _, _ in partials]
        total = sum(factor * total for factor, (_, total, _) in zip(factors, partials, strict=True))
        output = np.sum([f * o for f, (_, _, o) in zip(factors, partials, strict=True)], axis=0)
        return np.asarray(output / total)

    @staticmethod
    def partial(shard: Shard) -> tuple[float, float, Float64]:
        """m, l and o of one tier's tokens, at least one."""
        maximum = float(shard.scores.max())
        weight = np.exp2(shard.scores - maximum)
        return maximum, float(weight.sum()), weight @ shard.values


class ExactMerge(TierMerge):
    """One maximum for all tiers, then sums of integers: any partition and order give the same bits.

    A weight has 26 fraction bits and a product is rounded once, to even; values below 2^16 in magnitude, at
    most 2^20 tokens in all, or ValueError.
    """

    def attend(self, shards: Sequence[Shard]) -> Float64:
        """See `TierMerge.attend`."""
        filled = _filled(shards)
        if (tokens := sum(len(shard.scores) for shard in filled)) > MOST_TOKENS:
            raise ValueError(f"tokens is {tokens}; allowed: at most {MOST_TOKENS}")
        most = max(float(shard.scores.max()) for shard in filled)
        partials = [self.partial(shard, most) for shard in filled]
        total = sum(total for total, _ in partials)
        output: NDArray[np.int64] = np.sum([output for _, output in partials], axis=0)
        return np.asarray(output / total)

    @staticmethod
    def partial(shard: Shard, maximum: float) -> tuple[int, NDArray[np.int64]]:
        """Integer sums of weights and of weighted values of one tier, around the common maximum."""
        if np.abs(shard.values).max() >= MOST_VALUE:
            raise ValueError(f"a value is {np.abs(shard.values).max():g}; allowed: below {MOST_VALUE:g}")
        weight = np.exp2(shard.scores - maximum + FRACTION_BITS)
        products = np.rint(weight[:, None] * shard.values).astype(np.int64)
        return int(np.rint(weight).astype(np.int64).sum()), products.sum(axis=0)


def _filled(shards: Sequence[Shard]) -> list[Shard]:
    filled = [shard for shard in shards if len(shard.scores)]
    if not filled:
        raise ValueError("shards hold no token; allowed: at least one")
    return filled


def tier_merge(kind: Merge) -> TierMerge:
    """The merge of a kind."""
    return ExactMerge() if kind is Merge.EXACT else ExponentialMerge()
