"""Attention over stored rows in float64, host scores, selection, and the yardsticks they are judged by."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.query import LOG2_E
from nearkv.policy.ranking import top_lowest_index

Float16 = NDArray[np.float16]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def attention_weights(query: Float16, keys: NDArray[np.floating]) -> Float64:
    """Softmax of q·k/√d over the tokens given.

    Args:
        query: float16 [heads, head_dim].
        keys: float16 or float64 [tokens, head_dim], at least one token.

    Returns:
        float64 [tokens, heads]; every column sums to 1.

    """
    return softmax(logits(query, keys))


def masked_weights(query: Float16, keys: NDArray[np.floating], attends: NDArray[np.bool_]) -> Float64:
    """As `attention_weights`, over the tokens that a head attends: bool [tokens, heads], some for each."""
    return softmax(np.where(attends, logits(query, keys), -np.inf))


def logits(query: Float16, keys: NDArray[np.floating]) -> Float64:
    """q·k/√d, float64 [tokens, heads]; products of FP16 numbers are exact, their sum rounds at 2^-53."""
    scaled = query.astype(np.float64) / math.sqrt(query.shape[1])
    return keys.astype(np.float64, copy=False) @ scaled.T


def softmax(values: Float64) -> Float64:
    """exp(x − max) / Σ of every column of float64 [tokens, heads]."""
    weights: Float64 = np.exp(values - values.max(axis=0))
    weights /= weights.sum(axis=0)
    return weights


def attend(weights: Float64, values: NDArray[np.floating]) -> Float64:
    """Weighted sum of value rows: weights float64 [tokens, heads] to float64 [heads, head_dim]."""
    return weights.T @ values.astype(np.float64, copy=False)


def host_scores(query: Float16, keys: NDArray[np.floating], fraction_bits: Int64) -> Int64:
    """Scores of rows on the host: q·k·log2(e)/√d in float64, rounded half up to 2^-fraction_bits.

    Args:
        query: float16 [heads, head_dim].
        keys: float16 or float64 [tokens, head_dim].
        fraction_bits: int64 [heads], the device's L, so that both kinds of scores compare.

    Returns:
        int64 [tokens, heads]. Unlike the device's, neither query nor keys are quantised.

    """
    scaled = np.ldexp(logits(query, keys) * LOG2_E, fraction_bits.astype(np.int32))
    return np.floor(scaled + 0.5).astype(np.int64)


def score_weights(scores: Int64, fraction_bits: Int64) -> Float64:
    """Softmax weights 2^(s−M) / Σ 2^(s−M) of base-2 scores int64 [tokens, heads], each head by itself."""
    below_peak = (scores - scores.max(axis=0)).astype(np.float64)
    weights = np.exp2(np.ldexp(below_peak, -fraction_bits.astype(np.int32)))
    return np.asarray(weights / weights.sum(axis=0))


def select(weights: Float64, count: int) -> Int64:
    """The `count` tokens of largest weight summed over the heads, ascending; ties to the lower token.

    Heads are merged after each was normalised, since raw scores of different heads do not compare.
    """
    return top_lowest_index(weights.sum(axis=1), count)


def recall(scores: NDArray[np.generic], truth: Float64, count: int) -> Float64:
    """Share of each head's true top `count` tokens that its scores place in their top `count`.

    Args:
        scores: [tokens, heads], higher is better.
        truth: float64 [tokens, heads], the exact logits (weights may underflow and tie).
        count: at least 1.

    Returns:
        float64 [heads].

    """
    found = [
        len(np.intersect1d(top_lowest_index(s, count), top_lowest_index(t, count), assume_unique=True))
        for s, t in zip(scores.T, truth.T, strict=True)
    ]
    return np.array(found) / count


def relative_error(output: Float64, reference: Float64) -> float:
    """‖output − reference‖₂ / ‖reference‖₂ over all heads; 0 where both are zero."""
    difference, norm = np.linalg.norm(output - reference), np.linalg.norm(reference)
    return float(difference / norm) if norm > 0 else (0.0 if difference == 0 else math.inf)
