"""Which prefixes are kept, how often they were asked for, and which are worth a write to a drive."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike


def prefix_keys(token_ids: ArrayLike, block_tokens: int) -> list[bytes]:
    """Keys of a prompt's full blocks; each stands for all tokens up to its end (BLAKE2b, 16 bytes).

    Args:
        token_ids: integers [n].
        block_tokens: tokens of a block.

    Raises ValueError for another shape or type.

    """
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or ids.size == 0):
        raise ValueError(f"token_ids is {ids.dtype} with shape {ids.shape}; allowed: integers [n]")
    keys: list[bytes] = []
    last = b""
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        block = ids[start : start + block_tokens].astype("<i8").tobytes()
        last = hashlib.blake2b(last + block, digest_size=16).digest()
        keys.append(last)
    return keys


class PrefixIndex:
    """Blocks by the key of their prefix, and how many sequences asked for each key.

    Counts outlive the blocks, so that a threshold can tell the second visit from the first; the keys asked
    for least recently are forgotten.

    Args:
        remembered_keys: keys with a count, from 1.
        min_seen: how often a key must have been asked for before its block is written to be kept, from 1.

    Raises ValueError for a value out of range.

    """

    def __init__(self, remembered_keys: int, min_seen: int) -> None:
        if remembered_keys < 1 or min_seen < 1:
            raise ValueError(f"remembered_keys is {remembered_keys}, min_seen {min_seen}; allowed: from 1")
        self.min_seen = min_seen
        self._remembered = remembered_keys
        self._seen: OrderedDict[Hashable, int] = OrderedDict()
        self._block: dict[Hashable, int] = {}
        self._key: dict[int, Hashable] = {}

    def ask(self, keys: Sequence[Hashable]) -> list[int]:
        """Count the keys; returns the blocks of the longest run of known ones from the start."""
        for key in keys:
            self._seen[key] = self._seen.pop(key, 0) + 1
        while len(self._seen) > self._remembered:
            self._seen.popitem(last=False)
        found = []
        for key in keys:
            if key not in self._block:
                break
            found.append(self._block[key])
        return found

    def enter(self, key: Hashable, block: int) -> None:
        """Offer a full block to later sequences; the first one of a key stays."""
        if key not in self._block:
            self._block[key] = block
            self._key[block] = key

    def forget(self, block: int) -> None:
        """Offer a block no longer."""
        if block in self._key:
            del self._block[self._key.pop(block)]

    def offers(self, block: int) -> bool:
        """Whether later sequences can find the block."""
        return block in self._key

    def seen(self, block: int) -> int:
        """Sequences that asked for the block's key."""
        return self._seen.get(self._key.get(block), 0)

    def is_worth_a_write(self, block: int, victim: int | None) -> bool:
        """Whether to write a finished block that is only kept for its prefix.

        Args:
            block: the block.
            victim: the kept block that would have to go, None if there is room. At full budget only one
                that was asked for less often may go: an even exchange would be undone by the next one.

        """
        if not self.offers(block) or self.seen(block) < self.min_seen:
            return False
        return victim is None or self.seen(victim) < self.seen(block)
