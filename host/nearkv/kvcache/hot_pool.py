"""The hot pool of one stream: FP16 key and value rows in slots of host memory, found by token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float16 = NDArray[np.float16]
TokenIndex = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_SLOT = -1
FIRST_SLOTS = 256


class HotPool:
    """Rows of the hot tokens of one (layer, kv head) stream; every operation works on whole arrays.

    Metadata are 4 bytes per token (its slot). The slots grow by doubling and are reused.
    """

    def __init__(self, head_dim: int, max_tokens: int) -> None:
        """Make an empty pool for token indices below `max_tokens` and rows of `head_dim` elements."""
        self.head_dim = head_dim
        self._slot = np.full(max_tokens, NO_SLOT, np.int32)
        self._keys = np.empty((FIRST_SLOTS, head_dim), np.float16)
        self._values = np.empty((FIRST_SLOTS, head_dim), np.float16)
        self._free = np.arange(FIRST_SLOTS, dtype=np.int32)

    def __len__(self) -> int:
        """Hot tokens."""
        return len(self._keys) - len(self._free)

    def holds(self, tokens: int) -> Mask:
        """Which of the tokens 0 … tokens−1 are hot: bool [tokens]."""
        hot: Mask = self._slot[:tokens] != NO_SLOT
        return hot

    def add(self, tokens: TokenIndex, keys: Float16, values: Float16) -> None:
        """Copy rows [n, head_dim] of cold tokens into free slots.

        Raises:
            ValueError: a token that is hot already.

        """
        if (hot := self._slot[tokens] != NO_SLOT).any():
            raise ValueError(f"token {tokens[hot][0]} is hot already; allowed: cold tokens")
        while len(self._free) < len(tokens):
            self._grow()
        slots, self._free = self._free[: len(tokens)], self._free[len(tokens) :]
        self._slot[tokens] = slots
        self._keys[slots] = keys
        self._values[slots] = values

    def drop(self, tokens: TokenIndex) -> None:
        """Free the slots of hot tokens.

        Raises:
            ValueError: a token that is not hot.

        """
        self._free = np.concatenate([self._slots_of(tokens), self._free])
        self._slot[tokens] = NO_SLOT

    def rows(self, tokens: TokenIndex) -> tuple[Float16, Float16]:
        """Keys and values of hot tokens, each float16 [n, head_dim].

        Raises:
            ValueError: a token that is not hot.

        """
        slots = self._slots_of(tokens)
        return self._keys[slots], self._values[slots]

    def _slots_of(self, tokens: TokenIndex) -> NDArray[np.int32]:
        slots = self._slot[tokens]
        if (cold := slots == NO_SLOT).any():
            raise ValueError(f"token {tokens[cold][0]} is not hot; allowed: hot tokens")
        return slots

    def _grow(self) -> None:
        before = len(self._keys)
        self._keys = np.concatenate([self._keys, np.empty_like(self._keys)])
        self._values = np.concatenate([self._values, np.empty_like(self._values)])
        self._free = np.concatenate([self._free, np.arange(before, 2 * before, dtype=np.int32)])
