"""S3-FIFO (Yang et al., SOSP 2023): three queues without reordering on a hit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo, TokenIndex
from nearkv.policy.ranking import highest

_NOWHERE, _SMALL, _MAIN, _GHOST = range(4)
_MAX_USES = 3  # two bits per token
_PROMOTING_USES = 2  # "more than once" since it entered


class S3Fifo(Policy):
    """Filters new tokens in a small queue; only those used twice there, or missed since, enter the main one.

    A fetched token enters the small queue, or the main one if the ghost queue remembers it. Room is made at
    the small queue's end while that queue has at least `small_fraction` of the room: a token used twice
    since it entered moves to the main queue, any other leaves for the ghost queue. Otherwise at the main
    queue's end: a used token goes round again with one use less, an unused one leaves. The ghost queue
    remembers as many tokens as the main queue may hold. Main has no limit of its own beside the pool's.

    With one access per step this is the paper's algorithm; the accesses of a larger step are one request:
    hits count, then room is made, then the fetched tokens enter. The room is what the pins leave of the
    capacity; pinned tokens are in no queue and enter the small one when their pin ends. Nothing is read
    ahead.

    Args:
        stream: the stream served.
        small_fraction: share of the room for the small queue, above 0, below 1.

    Raises ValueError for a share out of range.

    """

    def __init__(self, stream: StreamInfo, small_fraction: float = 0.1) -> None:
        """Start with empty queues."""
        super().__init__(stream)
        if not 0 < small_fraction < 1:
            raise ValueError(f"small_fraction is {small_fraction}; allowed: above 0, below 1")
        self.small_fraction = small_fraction
        self._queue: NDArray[np.uint8] = np.zeros(stream.max_tokens, np.uint8)
        self._uses: NDArray[np.uint8] = np.zeros(stream.max_tokens, np.uint8)
        self._place_in_line: NDArray[np.int64] = np.zeros(stream.max_tokens, np.int64)
        self._next_place = 0

    def place(self, seen: Observation) -> Mask:
        """Count hits, make room, let the fetched tokens in."""
        queue = self._queue[: seen.sealed_tokens]
        room = seen.capacity_tokens - int(seen.pinned.sum())
        loose = seen.hot & ~seen.pinned
        resident = (queue == _SMALL) | (queue == _MAIN)
        queue[seen.pinned | (resident & ~loose)] = _NOWHERE
        self._enqueue(np.flatnonzero(loose & ~resident), _SMALL)  # written, or no longer pinned

        accessed = seen.accessed()
        accessed = accessed[~seen.pinned[accessed]]
        hit = seen.hot[accessed]
        hits, fetched = accessed[hit], accessed[~hit]
        self._uses[hits] = np.minimum(self._uses[hits] + 1, _MAX_USES)
        fetched = fetched[max(len(fetched) - room, 0) :]
        small_tokens = math.ceil(self.small_fraction * room)
        self._make_room(queue, room - len(fetched), small_tokens)
        ghosts = self._in_line(queue, _GHOST)
        queue[ghosts[: max(len(ghosts) - (room - small_tokens), 0)]] = _NOWHERE
        remembered = queue[fetched] == _GHOST
        self._enqueue(fetched[remembered], _MAIN)
        self._enqueue(fetched[~remembered], _SMALL)
        return np.asarray(seen.pinned | (queue == _SMALL) | (queue == _MAIN))

    def _enqueue(self, tokens: TokenIndex, queue: int) -> None:
        self._queue[tokens] = queue
        self._uses[tokens] = 0
        self._take_places(tokens)

    def _take_places(self, tokens: TokenIndex) -> None:
        """Put the tokens, in the order given, at the head of the line."""
        self._place_in_line[tokens] = np.arange(self._next_place, self._next_place + len(tokens))
        self._next_place += len(tokens)

    def _in_line(self, queue: NDArray[np.uint8], which: int) -> TokenIndex:
        """The tokens of a queue, the first to leave first."""
        tokens = np.flatnonzero(queue == which)
        ordered: TokenIndex = tokens[np.argsort(self._place_in_line[tokens])]
        return ordered

    def _make_room(self, queue: NDArray[np.uint8], room: int, small_tokens: int) -> None:
        """Evict until at most `room` tokens are left in both queues."""
        excess = int(np.count_nonzero((queue == _SMALL) | (queue == _MAIN))) - room
        if excess <= 0:
            return
        line = self._in_line(queue, _SMALL)
        leaving_at = np.flatnonzero(self._uses[line] < _PROMOTING_USES)  # the others are passed on the way
        before = np.concatenate([[0], leaving_at + 1])  # places gone when each eviction begins
        evictions = min(excess, int(np.count_nonzero(len(line) - before >= max(small_tokens, 1))))
        drained = evictions > len(leaving_at)  # the last one found none, and took the rest to main
        gone = line if drained else line[: before[evictions]]
        evictions = min(evictions, len(leaving_at))
        promoted = gone[self._uses[gone] >= _PROMOTING_USES]
        evicted = gone[self._uses[gone] < _PROMOTING_USES]
        self._enqueue(promoted, _MAIN)
        self._enqueue(evicted, _GHOST)
        if excess > evictions:
            self._evict_main(queue, excess - evictions)

    def _evict_main(self, queue: NDArray[np.uint8], count: int) -> None:
        """Walk round the main queue until `count` unused tokens have left; then the small queue's last."""
        line = self._in_line(queue, _MAIN)
        if count > len(line):
            small = self._in_line(queue, _SMALL)
            self._enqueue(small[: count - len(line)], _GHOST)
            count = len(line)
        if count == 0:
            return
        # A token with u uses leaves in round u: victims are the first in the order (uses, place).
        uses = self._uses[line].astype(np.int64)
        order = -(uses * len(line) + np.arange(len(line)))
        victims = highest(order, count)
        last = victims[np.argmin(order[victims])]
        stay = np.ones(len(line), np.bool_)
        stay[victims] = False
        passed = np.arange(len(line)) < last  # by the walk's last round
        self._uses[line] = np.where(stay, uses - uses[last] - passed, 0)
        queue[line[victims]] = _NOWHERE
        rotated = np.concatenate([line[stay & ~passed], line[stay & passed]])
        self._take_places(rotated)
