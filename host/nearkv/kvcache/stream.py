"""One stream over two tiers: an unsealed tail and hot copies on the host, sealed blocks in the cold store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nearkv.kvcache.hot_pool import Float16, HotPool, Mask, TokenIndex
from nearkv_hdl.spec.layout import KeyFormat


class BlockScores(Protocol):
    """What a scoring job returns: scores of every token of the blocks asked for.

    `tokens` is int64 [n]; `scores` int32 [n, heads], base-2 logits with `fraction_bits` int64 [heads]
    fraction bits.
    """

    @property
    def tokens(self) -> TokenIndex:
        """Token index of each row of `scores`."""

    @property
    def scores(self) -> NDArray[np.int32]:
        """One score per token and query head."""

    @property
    def fraction_bits(self) -> NDArray[np.int64]:
        """L of each query head: a score's value is score · 2^-L."""


class ColdTier(Protocol):
    """What this layer needs of a cold store's stream."""

    def seal(self, keys: Float16, values: Float16) -> None:
        """Append whole blocks of rows, each float16 [tokens, head_dim]."""

    def score(self, query: Float16, block_indices: TokenIndex, key_format: KeyFormat) -> BlockScores:
        """Score every token of the blocks for query rows float16 [heads, head_dim]."""

    def fetch(self, tokens: TokenIndex) -> tuple[Float16, Float16]:
        """Key and value rows of sealed tokens, each float16 [n, head_dim], in the order asked for."""


@dataclass(frozen=True)
class Moves:
    """What a placement changed, in tokens.

    Attributes:
        promoted_tokens: sealed tokens that became hot.
        promotion_read_tokens: those of them whose rows had to be read from the cold store; the others had
            been fetched for the step that just ended.
        demoted_tokens: sealed tokens that lost their hot copy. Nothing moves: the cold tier is inclusive.

    """

    promoted_tokens: int
    promotion_read_tokens: int
    demoted_tokens: int


class TieredStream:
    """Rows of one (layer, kv head): append, seal, read for attention, and move between the tiers.

    Tokens are appended to a tail that is always hot. A tail of `block_tokens` tokens is sealed: written to
    the cold tier once, where it stays. From then on being hot means to have a copy in the pool as well.
    """

    def __init__(self, cold: ColdTier, head_dim: int, max_tokens: int, block_tokens: int) -> None:
        """Serve token indices below `max_tokens`; the cold tier's stream must be empty."""
        self.cold = cold
        self.block_tokens = block_tokens
        self.tokens = 0
        self.sealed_tokens = 0
        self._pool = HotPool(head_dim, max_tokens)
        self._fetched: tuple[TokenIndex, Float16, Float16] | None = None

    @property
    def sealed_blocks(self) -> int:
        """Blocks in the cold tier."""
        return self.sealed_tokens // self.block_tokens

    def hot(self) -> Mask:
        """Which tokens have their rows on the host: bool [tokens]."""
        return self._pool.holds(self.tokens)

    def append(self, keys: Float16, values: Float16) -> None:
        """Add rows [n, head_dim] of the next n tokens to the tail."""
        new = np.arange(self.tokens, self.tokens + len(keys))
        self._pool.add(new, keys, values)
        self.tokens += len(keys)

    def seal_full_blocks(self) -> int:
        """Write every full block of the tail to the cold tier; returns the tokens sealed.

        They keep their copies in the pool until a placement drops them.
        """
        end = self.tokens // self.block_tokens * self.block_tokens
        if sealed := end - self.sealed_tokens:
            self.cold.seal(*self._pool.rows(np.arange(self.sealed_tokens, end)))
            self.sealed_tokens = end
        return sealed

    def hot_keys(self, tokens: TokenIndex) -> Float16:
        """Key rows of hot tokens, float16 [n, head_dim]; ValueError for one that is not hot."""
        return self._pool.rows(tokens)[0]

    def read(self, tokens: TokenIndex) -> tuple[Float16, Float16]:
        """Rows of any tokens (ascending) for attention, fetching from the cold tier what is not hot.

        The fetched rows are kept until the next `place`, so that promoting one of them reads nothing.
        """
        hot = self._pool.holds(self.tokens)[tokens]
        missing = tokens[~hot]
        keys, values = np.empty((2, len(tokens), self._pool.head_dim), np.float16)
        keys[hot], values[hot] = self._pool.rows(tokens[hot])
        if len(missing):
            keys[~hot], values[~hot] = self.cold.fetch(missing)
            self._fetched = missing, keys[~hot], values[~hot]
        return keys, values

    def place(self, hot: Mask) -> Moves:
        """Make exactly the sealed tokens of `hot`, bool [sealed_tokens], hot; the tail stays."""
        now = self._pool.holds(self.sealed_tokens)
        demoted, promoted = np.flatnonzero(now & ~hot), np.flatnonzero(hot & ~now)
        self._pool.drop(demoted)
        unread = promoted
        if self._fetched is not None:
            tokens, keys, values = self._fetched
            kept = hot[tokens]
            self._pool.add(tokens[kept], keys[kept], values[kept])
            unread = np.setdiff1d(promoted, tokens, assume_unique=True)
            self._fetched = None
        if len(unread):
            self._pool.add(unread, *self.cold.fetch(unread))
        return Moves(len(promoted), len(unread), len(demoted))
