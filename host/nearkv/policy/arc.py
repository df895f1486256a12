"""Adaptive replacement cache (Megiddo and Modha, FAST 2003)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo, TokenIndex
from nearkv.policy.ranking import highest

_NOWHERE, _RECENT, _FREQUENT, _RECENT_GHOST, _FREQUENT_GHOST = range(5)  # the paper's T1, T2, B1, B2


class Arc(Policy):
    """Balances recency against frequency: two LRU lists, and two of what they evicted, that set the target.

    T1 holds tokens used once, T2 those used again, B1 and B2 what each evicted (indices only). A token
    found in B1 raises T1's target size p by max(|B2|/|B1|, 1), one found in B2 lowers it by
    max(|B1|/|B2|, 1). T1 gives way while it is larger than p, else T2. Tokens of a scan pass through T1 and
    leave T2 alone.

    With one access per step this is the paper's algorithm. The accesses of a larger step are one request:
    p moves by all of them, then room is made, then they enter. The cache size is what the pins leave of the
    capacity; pinned tokens are in no list and enter T1 when their pin ends. Nothing is read ahead.
    """

    def __init__(self, stream: StreamInfo) -> None:
        """Start with empty lists and p = 0."""
        super().__init__(stream)
        self._list: NDArray[np.uint8] = np.zeros(stream.max_tokens, np.uint8)
        self._stamp: NDArray[np.int32] = np.zeros(stream.max_tokens, np.int32)
        self.target_tokens = 0.0  # p

    def place(self, seen: Observation) -> Mask:
        """Adapt p, make room, let the accessed tokens in, trim the ghosts."""
        member = self._list[: seen.sealed_tokens]
        stamp = self._stamp[: seen.sealed_tokens]
        room = seen.capacity_tokens - int(seen.pinned.sum())
        loose = seen.hot & ~seen.pinned
        member[seen.pinned | (~loose & (member <= _FREQUENT))] = _NOWHERE
        entering = np.flatnonzero(loose & ((member == _NOWHERE) | (member > _FREQUENT)))
        member[entering], stamp[entering] = _RECENT, seen.step + 1  # written, or no longer pinned

        accessed = seen.accessed()
        accessed = accessed[~seen.pinned[accessed]]
        found = member[accessed]
        from_frequent_ghost = self._adapt(member, found, room)
        known, new = accessed[found != _NOWHERE], accessed[found == _NOWHERE]
        arriving = np.concatenate([accessed[found > _FREQUENT], new])
        member[known], member[new] = _FREQUENT, _RECENT
        stamp[accessed] = seen.step + 1
        self._make_room(member, stamp, arriving, room, from_frequent_ghost)
        self._trim_ghosts(member, stamp, room)
        return np.asarray(seen.pinned | (member == _RECENT) | (member == _FREQUENT))

    def _adapt(self, member: NDArray[np.uint8], found: NDArray[np.uint8], room: int) -> bool:
        """Move p by the ghosts that were accessed; whether one of them was in B2."""
        sizes = np.bincount(member, minlength=5)
        hits = np.bincount(found, minlength=5)
        recent, frequent = int(sizes[_RECENT_GHOST]), int(sizes[_FREQUENT_GHOST])
        if hits[_RECENT_GHOST]:
            self.target_tokens += int(hits[_RECENT_GHOST]) * max(frequent / recent, 1.0)
        if hits[_FREQUENT_GHOST]:
            self.target_tokens -= int(hits[_FREQUENT_GHOST]) * max(recent / frequent, 1.0)
        self.target_tokens = min(max(self.target_tokens, 0.0), float(room))
        return bool(hits[_FREQUENT_GHOST])

    def _make_room(
        self,
        member: NDArray[np.uint8],
        stamp: NDArray[np.int32],
        arriving: TokenIndex,
        room: int,
        from_frequent_ghost: bool,
    ) -> None:
        """Evict from T1 down to p, then from T2, then whatever is left; the tokens arriving go last."""
        stays = np.ones(len(member), np.bool_)
        stays[arriving] = False
        recent = np.flatnonzero((member == _RECENT) & stays)
        frequent = np.flatnonzero((member == _FREQUENT) & stays)
        excess = len(recent) + len(frequent) + len(arriving) - room
        if excess <= 0:
            return
        # The paper lets T1 give way at |T1| = p as well when the token comes from B2.
        kept = math.ceil(self.target_tokens) - 1 if from_frequent_ghost else math.floor(self.target_tokens)
        from_recent = min(excess, max(len(recent) - max(kept, 0), 0))
        from_frequent = min(excess - from_recent, len(frequent))
        from_recent = min(excess - from_frequent, len(recent))
        member[_oldest(recent, stamp, from_recent)] = _RECENT_GHOST
        member[_oldest(frequent, stamp, from_frequent)] = _FREQUENT_GHOST
        if (left := excess - from_recent - from_frequent) > 0:  # more arrive than there is room for
            member[np.sort(arriving)[:left]] = _NOWHERE

    @staticmethod
    def _trim_ghosts(member: NDArray[np.uint8], stamp: NDArray[np.int32], room: int) -> None:
        """Keep |T1| + |B1| ≤ c and |T1| + |T2| + |B1| + |B2| ≤ 2c, dropping the oldest ghosts."""
        # Tokens leave a list in the order of their stamps, so a ghost's stamp still gives its age.
        recent, frequent, recent_ghosts, frequent_ghosts = np.bincount(member, minlength=5)[1:].tolist()
        surplus = max(recent + recent_ghosts - room, 0)
        member[_oldest(np.flatnonzero(member == _RECENT_GHOST), stamp, surplus)] = _NOWHERE
        surplus = max(recent + frequent + recent_ghosts - surplus + frequent_ghosts - 2 * room, 0)
        member[_oldest(np.flatnonzero(member == _FREQUENT_GHOST), stamp, surplus)] = _NOWHERE


def _oldest(tokens: TokenIndex, stamp: NDArray[np.int32], count: int) -> TokenIndex:
    """The `count` tokens of smallest stamp; ties to the lower index."""
    if count == 0:
        return tokens[:0]
    kept = highest(stamp[tokens], len(tokens) - count)
    return np.delete(tokens, kept)
