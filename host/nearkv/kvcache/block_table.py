"""The block table: one logical address space over all tiers, reference counts, hit rates.

Block b holds `block_tokens` consecutive tokens of all streams, a stream being one (layer, kv head):
    row = (b · streams + layer · kv_heads + kv_head) · block_tokens + offset
is the address of one token's keys and values, the same wherever they lie. Sequences map their token
t to block number blocks[t // block_tokens], as PagedAttention does (arXiv 2309.06180), and share blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.kvcache.rows import Generation, RowIndex

Place = NDArray[np.int32]

NOWHERE = -1  # no copy in a row tier: home only
ARRIVING = -2  # a copy is on its way to a row tier
SLOT_BITS = 27
MAX_ROW_TIERS = 1 << (31 - SLOT_BITS)
RATE_MAX = (1 << 16) - 1  # HillInfer's table holds 2 bytes per token (arXiv 2602.18750)
DECAY_SHIFT = 3


def pack_place(tier: int, slots: NDArray[np.int64]) -> Place:
    """Place of a copy: number of the row tier, then slot."""
    return (tier << SLOT_BITS | slots).astype(np.int32)


def tier_of(place: Place) -> Place:
    """Number of the row tier of each place; negative where there is no copy."""
    tier: Place = place >> SLOT_BITS
    return tier


def slot_of(place: Place) -> NDArray[np.int64]:
    """Slot of each place that is one."""
    return (place & ((1 << SLOT_BITS) - 1)).astype(np.int64)


class BlockTable:
    """What is known of every block and row: 6 bytes a row (place 4, hit rate 2) and 13 bytes a block.

    Attributes:
        place: int32 [blocks, streams, block_tokens], where the copy in a row tier is.
        rate: uint16 of the same shape, share of recent steps that read the row, in 1/65535.
        references: int32 [blocks], sequences that hold a block; 0 also where it is only kept for its prefix.
        generation: uint32 [blocks], raised whenever a block number is given out anew.
        home: int8 [blocks], number of the block tier with a committed copy of its first `home_tokens`
            tokens; NOWHERE without.
        home_tokens: int32 [blocks].

    """

    def __init__(self, max_blocks: int, streams: int, block_tokens: int) -> None:
        """Make `max_blocks` block numbers, all free."""
        self.streams, self.block_tokens = streams, block_tokens
        self.block_rows = streams * block_tokens
        self.place = np.full((max_blocks, streams, block_tokens), NOWHERE, np.int32)
        self.rate = np.zeros((max_blocks, streams, block_tokens), np.uint16)
        self.references = np.zeros(max_blocks, np.int32)
        self.generation = np.zeros(max_blocks, np.uint32)
        self.home = np.full(max_blocks, NOWHERE, np.int8)
        self.home_tokens = np.zeros(max_blocks, np.int32)
        self._flat_place, self._flat_rate = self.place.reshape(-1), self.rate.reshape(-1)
        self._free = list(range(max_blocks))[::-1]

    @property
    def free_blocks(self) -> int:
        """Block numbers that can be given out."""
        return len(self._free)

    @property
    def metadata_bytes(self) -> int:
        """Bytes of all tables."""
        tables = (self.place, self.rate, self.references, self.generation, self.home, self.home_tokens)
        return sum(table.nbytes for table in tables)

    def take(self) -> int:
        """Give out a block number in a new generation, referenced once; IndexError if there is none."""
        block = self._free.pop()
        self.generation[block] += 1
        self.references[block] = 1
        self.rate[block] = 0
        return block

    def release(self, block: int) -> None:
        """Take back a block without references, whose rows have no copies left."""
        self.home[block] = NOWHERE
        self.home_tokens[block] = 0
        self._free.append(block)

    def has_copies(self, block: int) -> bool:
        """Whether any row has a copy in a row tier."""
        return bool((self.place[block] >= 0).any())

    def rows(self, blocks: NDArray[np.int64], streams: RowIndex, tokens: RowIndex) -> RowIndex:
        """Addresses of rows: `streams` and `tokens` are broadcast; `blocks` are those of the sequence."""
        block, offset = np.divmod(tokens, self.block_tokens)
        rows: RowIndex = (blocks[block] * self.streams + streams) * self.block_tokens + offset
        return rows

    def rows_of_block(self, block: int, tokens: int) -> RowIndex:
        """Addresses of all streams' first `tokens` rows, int64 [streams · tokens]."""
        first = (block * self.streams + np.arange(self.streams)) * self.block_tokens
        return (first[:, None] + np.arange(tokens)).reshape(-1)

    def block_of(self, rows: RowIndex) -> NDArray[np.int64]:
        """Block of each row."""
        blocks: NDArray[np.int64] = rows // self.block_rows
        return blocks

    def place_of(self, rows: RowIndex) -> Place:
        """Where the copy of each row is."""
        return self._flat_place[rows]

    def set_place(self, rows: RowIndex, place: Place | int) -> None:
        """Say where copies are."""
        self._flat_place[rows] = place

    def generation_of(self, rows: RowIndex) -> Generation:
        """Generation of each row's block."""
        return self.generation[self.block_of(rows)]

    def rate_of(self, rows: RowIndex) -> NDArray[np.uint16]:
        """Hit rate of each row."""
        return self._flat_rate[rows]

    def count_hits(self, blocks: NDArray[np.int64], read: RowIndex) -> None:
        """One step's update: rates of all rows of `blocks` decay by an eighth, rows that were read gain one.

        rate ← rate − (rate >> 3), then + 65535 >> 3 for rows read, saturating at 65535. Each block and row
        is named once.
        """
        rates = self.rate[blocks]
        rates -= rates >> DECAY_SHIFT
        self.rate[blocks] = rates
        grown = self._flat_rate[read].astype(np.int32) + (RATE_MAX >> DECAY_SHIFT)
        self._flat_rate[read] = np.minimum(grown, RATE_MAX)
