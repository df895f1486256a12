"""Scores of tokens, all or the highest: what callers get, what the kernel writes, selections merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.layout import PAIR_BYTES, selection_bytes

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

PAIR_DTYPE = np.dtype([("token", "<u4"), ("score", "<i4")])
assert PAIR_DTYPE.itemsize == PAIR_BYTES


@dataclass(frozen=True)
class Selection:
    """The highest scores of each query head, ties to the lower token.

    Attributes:
        tokens: int64 [heads, count], ascending in each head.
        scores: int32 [heads, count].

    """

    tokens: Int64
    scores: NDArray[np.int32]


@dataclass(frozen=True)
class Scores:
    """Base-2 logits of some tokens.

    Attributes:
        tokens: int64 [n], token index of each row.
        scores: int32 [n, heads]; the logit is score · 2^-fraction_bits.
        fraction_bits: int64 [heads].

    """

    tokens: Int64
    scores: NDArray[np.int32]
    fraction_bits: Int64


@dataclass(frozen=True)
class TopScores(Selection):
    """The highest base-2 logits of each head; with fraction_bits int64 [heads] as of Scores."""

    fraction_bits: Int64


def pack_selection(selection: Selection) -> Bytes:
    """A selection as the kernel writes it: uint8 [heads · selection_bytes(count)]."""
    heads, count = selection.tokens.shape
    pairs = np.zeros((heads, selection_bytes(count) // PAIR_BYTES), PAIR_DTYPE)
    pairs["token"][:, :count], pairs["score"][:, :count] = selection.tokens, selection.scores
    return pairs.view(np.uint8).reshape(-1)


def unpack_selection(data: Bytes, heads: int, count: int) -> Selection:
    """The selection of `count` scores of each head that the kernel wrote."""
    pairs = data.view(PAIR_DTYPE).reshape(heads, -1)[:, :count]
    return Selection(pairs["token"].astype(np.int64), pairs["score"].astype(np.int32))


def beside(parts: Sequence[Selection]) -> Selection:
    """Heads of several selections of equal count, one part's after the other's."""
    return Selection(np.concatenate([p.tokens for p in parts]), np.concatenate([p.scores for p in parts]))


def merge(parts: Sequence[Selection], k: int) -> Selection:
    """The k highest of each head in selections of disjoint tokens, each of k or of all its tokens.

    A score that a part left out has k better ones in that part, so that none is missing here.
    """
    tokens = np.concatenate([part.tokens for part in parts], axis=1)
    scores = np.concatenate([part.scores for part in parts], axis=1)
    best = np.lexsort((tokens, -scores.astype(np.int64)))[:, :k]
    kept = np.take_along_axis(tokens, best, 1)
    order = kept.argsort(axis=1)
    return Selection(
        np.take_along_axis(kept, order, 1),
        np.take_along_axis(np.take_along_axis(scores, best, 1), order, 1),
    )
