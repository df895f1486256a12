"""Counters of a cache. A row is one token's keys and values of one (layer, kv head)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nearkv.kvcache.mover import Leg


@dataclass
class CacheMetrics:
    """Totals since the cache was made.

    Attributes:
        appended_rows: written by the caller.
        hot_rows: read from a row tier.
        loaded_rows: read from a block tier and found good; a failed row is never among them.
        missing_rows: asked for and not to be had: reported for recomputation.
        promoted_rows: home copies copied up to a row tier.
        shifted_rows: copies moved from one row tier to another.
        dropped_rows: copies in row tiers given up after their home copy was committed.
        evicted_rows: those of them given up for want of room.
        deferred_rows: rows of moves that had to wait for slots at their target.
        unfulfilled_rows: rows of moves whose deadline passed while they waited for slots, or that gave way to
            an append.
        bad_rows: records that failed identity, generation or CRC.
        leg_failures: failed legs by leg, retried or not.
        retried_moves, failed_moves, timed_out_moves, cancelled_moves: moves by what happened to them.
        moved_bytes: committed bytes by (source, target): rows, which is what a link is timed for.
        stored_blocks: blocks committed to a block tier.
        refused_blocks: finished blocks that admission did not let be written.
        evicted_blocks: kept prefixes given up for room.
        block_bytes_written: bytes of committed and of failed writes to block tiers, headers of records
            included: what wears a drive.
        append_wait_ps: time appends waited for lower copies to be committed.
        read_wait_ps: time reads waited for rows.

    """

    appended_rows: int = 0
    hot_rows: int = 0
    loaded_rows: int = 0
    missing_rows: int = 0
    promoted_rows: int = 0
    shifted_rows: int = 0
    dropped_rows: int = 0
    evicted_rows: int = 0
    deferred_rows: int = 0
    unfulfilled_rows: int = 0
    bad_rows: int = 0
    leg_failures: Counter[Leg] = field(default_factory=Counter)
    retried_moves: int = 0
    failed_moves: int = 0
    timed_out_moves: int = 0
    cancelled_moves: int = 0
    moved_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    stored_blocks: int = 0
    refused_blocks: int = 0
    evicted_blocks: int = 0
    block_bytes_written: int = 0
    append_wait_ps: int = 0
    read_wait_ps: int = 0

    @property
    def bytes_written_per_useful_hit(self) -> float:
        """Bytes written to block tiers per row loaded or promoted from them; infinite without any hit."""
        hits = self.loaded_rows + self.promoted_rows
        if self.block_bytes_written == 0:
            return 0.0
        return self.block_bytes_written / hits if hits else float("inf")
