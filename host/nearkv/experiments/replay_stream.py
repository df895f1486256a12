"""Attention weights of a trace's steps, for one KV head or for a whole layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Float64
from nearkv.trace.format import AttentionTrace, HeadStream

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class ReplayStream:
    """Heads that share one placement. All arithmetic is float32.

    Attributes:
        heads: one KV head with its query heads, or several KV heads of one layer.
        first_query_position: position (token index) of query step 0.
        token_ids: int64 [context_tokens], what the model read; None where it is not known.

    """

    heads: tuple[HeadStream, ...]
    first_query_position: int
    token_ids: Int64 | None = None

    def __post_init__(self) -> None:
        """Check that every token has an id, if any has."""
        if self.token_ids is not None and self.token_ids.shape != (self.context_tokens,):
            raise ValueError(
                f"token_ids has shape {self.token_ids.shape}; allowed: ({self.context_tokens},), the context"
            )

    @property
    def context_tokens(self) -> int:
        """Tokens of the whole context."""
        return len(self.heads[0].key)

    @property
    def steps(self) -> int:
        """Steps whose queries are known."""
        return int(self.heads[0].query.shape[1])

    @property
    def name(self) -> str:
        """Short name: `L12.H0` for one KV head, `L12` for several."""
        return self.heads[0].name if len(self.heads) == 1 else f"L{self.heads[0].layer}"

    @cached_property
    def _keys(self) -> tuple[Float32, ...]:
        return tuple(head.key.astype(np.float32) for head in self.heads)

    def weights(self, first_step: int, count: int) -> Float32:
        """True attention of `count` steps, mean over all query heads.

        Returns float32 [count, context_tokens]; 0 for tokens later than the step's own.
        """
        first_position = self.first_query_position + first_step
        end = first_position + count
        later = np.triu(np.full((count, count), -np.inf, np.float32), 1)
        total = np.zeros((count, self.context_tokens), np.float32)
        query_heads = 0
        for head, keys in zip(self.heads, self._keys, strict=True):
            for query in head.query[:, first_step : first_step + count].astype(np.float32):
                scores = query @ keys[:end].T
                scores *= np.float32(1 / math.sqrt(query.shape[1]))
                scores[:, first_position:] += later
                total[:, :end] += _softmax(scores)
                query_heads += 1
        total /= query_heads
        return total

    def score(self, query: Float32, tokens: int) -> Float64:
        """Attention of a made-up query float32 [heads, head_dim] over tokens 0 … tokens−1, mean over heads.

        ValueError for a stream of several KV heads, which do not share queries.
        """
        if len(self.heads) > 1:
            raise ValueError(f"stream is {self.name} of {len(self.heads)} KV heads; allowed: one KV head")
        scores = query @ self._keys[0][:tokens].T
        scores *= np.float32(1 / math.sqrt(query.shape[1]))
        return np.asarray(_softmax(scores).mean(axis=0, dtype=np.float64))


def kv_head_streams(trace: AttentionTrace, token_ids: Int64 | None = None) -> Iterator[ReplayStream]:
    """One stream per KV head of the trace."""
    for head in trace.streams:
        yield ReplayStream((head,), trace.first_query_position, token_ids)


def layer_streams(trace: AttentionTrace, token_ids: Int64 | None = None) -> Iterator[ReplayStream]:
    """One stream per layer of the trace, its KV heads merged."""
    for _, heads in groupby(trace.streams, key=lambda head: head.layer):
        yield ReplayStream(tuple(heads), trace.first_query_position, token_ids)


def _softmax(scores: Float32) -> Float32:
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores
