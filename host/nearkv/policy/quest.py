"""Pages by an upper bound of their attention (Quest, arXiv 2406.10774)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Float64, Mask, Observation, Policy, StreamInfo


class Quest(Policy):
    """Keeps the pages whose keys could score highest against the last query.

    A page is `page_tokens` neighbouring tokens; of its keys only the least and the largest element per
    channel are kept. For a query head, Σᵢ max(qᵢ·minᵢ, qᵢ·maxᵢ)/√d bounds every score in the page. Heads are
    merged after a softmax over pages, since bounds of different heads do not compare.

    The paper picks pages with the query of the step that attends them. A placement is made before that
    query exists, so this policy uses the query before it. At prefill, without a query, the newest tokens
    stay.

    Args:
        stream: the stream served.
        page_tokens: tokens of a page; the paper uses 16.

    Raises ValueError for a page of less than one token.

    """

    needs_keys = True

    def __init__(self, stream: StreamInfo, page_tokens: int = 16) -> None:
        """Start without a summary; it is allocated when the first keys show their head_dim."""
        super().__init__(stream)
        if page_tokens < 1:
            raise ValueError(f"page_tokens is {page_tokens}; allowed: 1 or more")
        self.page_tokens = page_tokens
        self._least: NDArray[np.float32] | None = None
        self._largest: NDArray[np.float32] | None = None
        self._summarised_tokens = 0

    def place(self, seen: Observation) -> Mask:
        """Summarise the keys just sealed, bound every page, keep the best."""
        if seen.new_keys is None:
            raise ValueError("new_keys is None; allowed: key rows, as needs_keys asks for")
        least, largest = self._summarise(seen.new_keys.astype(np.float32))
        if seen.query is None or not seen.sealed_tokens:
            return seen.fill(np.zeros(seen.sealed_tokens))
        pages = math.ceil(seen.sealed_tokens / self.page_tokens)
        weight = self._weights(seen.query.astype(np.float32), least[:pages], largest[:pages])
        return seen.fill(np.repeat(weight, self.page_tokens)[: seen.sealed_tokens])

    def _summarise(self, keys: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Take the rows into the pages' bounds; returns both, float32 [pages, head_dim]."""
        if self._least is None or self._largest is None:
            shape = (math.ceil(self.stream.max_tokens / self.page_tokens), keys.shape[1])
            self._least, self._largest = (
                np.full(shape, np.inf, np.float32),
                np.full(shape, -np.inf, np.float32),
            )
        if len(keys):
            page = np.arange(self._summarised_tokens, self._summarised_tokens + len(keys)) // self.page_tokens
            starts = np.flatnonzero(np.diff(page, prepend=-1))
            rows = page[starts]
            least, largest = (ufunc.reduceat(keys, starts, axis=0) for ufunc in (np.minimum, np.maximum))
            self._least[rows] = np.minimum(self._least[rows], least)
            self._largest[rows] = np.maximum(self._largest[rows], largest)
            self._summarised_tokens += len(keys)
        return self._least, self._largest

    @staticmethod
    def _weights(
        query: NDArray[np.float32], least: NDArray[np.float32], largest: NDArray[np.float32]
    ) -> Float64:
        """Softmax over pages of each head's bound, mean over the heads: float64 [pages]."""
        # max(q·a, q·b) with a ≤ b is q·b for q ≥ 0 and q·a below.
        bound = largest @ np.maximum(query, 0).T + least @ np.minimum(query, 0).T
        bound = bound.astype(np.float64) / math.sqrt(query.shape[1])
        weight: Float64 = np.exp(bound - bound.max(axis=0))
        return np.asarray((weight / weight.sum(axis=0)).mean(axis=1))
