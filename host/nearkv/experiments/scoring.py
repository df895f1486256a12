"""Scores of one step: the device's for blocks with cold tokens, the host's for the rest."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.experiments.attention import Float16, Int64, host_scores
from nearkv.kvcache.hot_pool import Mask
from nearkv.kvcache.stream import TieredStream
from nearkv_hdl.spec.layout import KeyFormat

# L where no device score sets one: the processing units' scores are Q15.16.
HOST_FRACTION_BITS = 16
NEVER_SELECTED = np.iinfo(np.int64).min


@dataclass(frozen=True)
class StepScores:
    """Scores of every token in context, base-2 logits with `fraction_bits` fraction bits.

    Attributes:
        scores: int64 [tokens, heads], what a step selects by.
        measured: int64 [tokens, heads], the device's score wherever it scored the token, else the host's:
            what the recall judges, since it shows what the format does.
        fraction_bits: int64 [heads].
        blocks: key blocks the device scored.
        device_crc32: CRC-32 of the device's scores, int32 little-endian; 0 without any.

    """

    scores: Int64
    measured: Int64
    fraction_bits: Int64
    blocks: int = 0
    device_crc32: int = 0


def score_all(
    tier: TieredStream, query: Float16, hot: Mask, key_format: KeyFormat, uniform: bool
) -> StepScores:
    """Score every token in context.

    Args:
        tier: the stream.
        query: float16 [heads, head_dim].
        hot: bool [tokens], `tier.hot()`.
        key_format: what the device streams.
        uniform: let the device score every sealed token; otherwise it scores the blocks that hold a cold
            one, and hot tokens get the host's more exact score.

    """
    sealed = tier.sealed_tokens
    on_host = hot.copy()
    if uniform:
        on_host[:sealed] = False
    blocks = np.flatnonzero((~on_host[:sealed]).reshape(-1, tier.block_tokens).any(axis=1))
    scores = np.empty((len(hot), len(query)), np.int64)
    on_device = np.zeros(len(hot), np.bool_)
    fraction_bits, device_crc32 = _host_fraction_bits(query), 0
    if len(blocks):
        found = tier.cold.score(query, blocks, key_format)
        fraction_bits = found.fraction_bits
        scores[found.tokens] = found.scores
        on_device[found.tokens] = True
        device_crc32 = zlib.crc32(found.scores.astype("<i4").tobytes())
    measured = scores.copy()
    tokens = np.flatnonzero(on_host)
    scores[tokens] = host_scores(query, tier.hot_keys(tokens), fraction_bits)
    measured[~on_device] = scores[~on_device]
    return StepScores(scores, measured, fraction_bits, len(blocks), device_crc32)


def score_hot(tier: TieredStream, query: Float16, hot: Mask) -> StepScores:
    """Score the hot tokens on the host; the others rank below all of them."""
    scores = np.full((len(hot), len(query)), NEVER_SELECTED)
    fraction_bits = _host_fraction_bits(query)
    tokens = np.flatnonzero(hot)
    scores[tokens] = host_scores(query, tier.hot_keys(tokens), fraction_bits)
    return StepScores(scores, scores, fraction_bits)


def _host_fraction_bits(query: NDArray[np.generic]) -> Int64:
    return np.full(len(query), HOST_FRACTION_BITS, np.int64)
