"""Sequences: who holds which blocks, in which state."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearkv.kvcache.moves import Move
from nearkv.kvcache.rows import RowIndex


class CapacityError(RuntimeError):
    """No room, even after what may be given up was; the cache is as before. Preempt or free a sequence."""


class TransferError(RuntimeError):
    """Rows that a lifecycle call needs could not be moved, after a retry; the cache is as before."""


class SequenceState(Enum):
    """What may be asked of a sequence."""

    RUNNING = "running"
    PREEMPTED = "preempted"  # holds its tokens, but no tail in a row tier: resume it first


@dataclass
class SequenceRecord:
    """One sequence.

    Attributes:
        name: the caller's.
        keys: prefix keys of its blocks, from the first; those without a key are not offered to others.
        blocks: int64, block number of each block.
        tokens: length.
        state: running or preempted.
        moves: promotions and shifts asked for in its name that may still be under way.
        pinned: int64, rows the caller pinned, ascending.

    """

    name: str
    keys: tuple[Hashable, ...]
    blocks: NDArray[np.int64]
    tokens: int
    state: SequenceState = SequenceState.RUNNING
    moves: dict[Move, None] = field(default_factory=dict)
    pinned: RowIndex = field(default_factory=lambda: np.empty(0, np.int64))


class SequenceTable:
    """Sequences by name.

    Args:
        streams: streams of the cache.
        block_tokens: tokens of a block.

    """

    def __init__(self, streams: int, block_tokens: int) -> None:
        self._streams, self._block_tokens = streams, block_tokens
        self._records: dict[str, SequenceRecord] = {}

    def names(self) -> list[str]:
        """In the order they were started."""
        return list(self._records)

    def add(self, name: str, keys: Sequence[Hashable], blocks: Sequence[int]) -> SequenceRecord:
        """Start one that holds full blocks."""
        held = np.array(blocks, np.int64)
        self._records[name] = SequenceRecord(name, tuple(keys), held, len(held) * self._block_tokens)
        return self._records[name]

    def check_new(self, name: str) -> None:
        """ValueError for a name in use."""
        if name in self._records:
            raise ValueError(f"sequence {name!r} is held already; allowed: a name not in use")

    def remove(self, name: str) -> None:
        """Forget one."""
        del self._records[name]

    def get(self, name: str, state: SequenceState | None = None) -> SequenceRecord:
        """One by name; ValueError for an unknown name, or another state than asked for."""
        if name not in self._records:
            raise ValueError(f"sequence is {name!r}; allowed: {', '.join(self._records) or 'none is held'}")
        record = self._records[name]
        if state is not None and record.state is not state:
            raise ValueError(f"sequence {name!r} is {record.state.value}; allowed: {state.value}")
        return record

    def runs(self, record: SequenceRecord) -> bool:
        """Whether a sequence is held and running: this one, not another under the same name."""
        return self._records.get(record.name) is record and record.state is SequenceState.RUNNING

    def check_rows(
        self, record: SequenceRecord, streams: ArrayLike, tokens: ArrayLike
    ) -> tuple[RowIndex, RowIndex]:
        """Stream and token of each row asked for: the two broadcast and flattened, int64 [n] each.

        Raises ValueError for others than integers, a stream the cache or a token the sequence does not have.
        """
        pair = np.broadcast_arrays(np.asarray(streams), np.asarray(tokens))
        limits = (("streams", self._streams), ("tokens", record.tokens))
        for (what, limit), values in zip(limits, pair, strict=True):
            if not (np.issubdtype(values.dtype, np.integer) or values.size == 0):
                raise ValueError(f"{what} are {values.dtype}; allowed: integers")
            outside = (values < 0) | (values >= limit)
            if outside.any():
                allowed = f"0 to {limit - 1}" if limit else f"none, sequence {record.name!r} is empty"
                raise ValueError(f"{what} hold {values[outside].flat[0]}; allowed: {allowed}")
        return pair[0].reshape(-1).astype(np.int64), pair[1].reshape(-1).astype(np.int64)
