"""What a cache is made of."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.kvcache.mover import LinkTimes, good_batch_bytes
from nearkv.kvcache.rows import RowCodec, RowFormat
from nearkv.kvcache.tiers import TierConfig
from nearkv.machine import PS_PER_S
from nearkv_hdl.spec.layout import BLOCK_TOKENS


@dataclass(frozen=True)
class CacheConfig:
    """A cache's shape, tiers and limits.

    Attributes:
        model: identifies model and weights; part of every record's check value.
        layers, kv_heads: their product is the number of streams; stream = layer · kv_heads + kv_head.
        head_dim: elements of a key or value row.
        tiers: fastest first; at least one of each role.
        max_blocks: block numbers, which bound the tokens held: 6 bytes of tables per row.
        block_tokens: tokens of a block.
        row_format: how records hold rows, in every tier.
        staging_buffers: buffers of the migration engine.
        batch_rows: most rows of a move; None for what the links take at 90 % of their bandwidth. A store
            always moves a block.
        timeout_ps: from registration to the end of a move.
        min_seen: sequences that must have asked for a prefix before its blocks are written to a block tier
            without need; 1 writes every full block at once.

    ValueError for a value out of range.

    """

    model: str
    layers: int
    kv_heads: int
    head_dim: int
    tiers: tuple[TierConfig, ...]
    max_blocks: int
    block_tokens: int = BLOCK_TOKENS
    row_format: RowFormat = RowFormat.FP16
    staging_buffers: int = 2
    batch_rows: int | None = None
    timeout_ps: int = PS_PER_S
    min_seen: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("layers", "kv_heads", "head_dim", "max_blocks", "block_tokens", "staging_buffers"):
            self._check_positive(name)
        for name in ("timeout_ps", "min_seen"):
            self._check_positive(name)
        if self.batch_rows is not None:
            self._check_positive("batch_rows")

    def _check_positive(self, name: str) -> None:
        if (value := getattr(self, name)) < 1:
            raise ValueError(f"{name} is {value}; allowed: from 1")

    @property
    def streams(self) -> int:
        """Streams: (layer, kv head) pairs."""
        return self.layers * self.kv_heads

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.streams * self.block_tokens

    @property
    def codec(self) -> RowCodec:
        """Makes and checks this cache's records."""
        return RowCodec(self.head_dim, self.row_format, self.model)

    def timeout_of(self, timeout_ps: int | None) -> int:
        """A call's own timeout, or the cache's for None; ValueError for one below 1."""
        if timeout_ps is not None and timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        return timeout_ps or self.timeout_ps

    def good_batch_rows(self, links: LinkTimes) -> int:
        """Rows of the largest batch that any pair of tiers asks for: see `good_batch_bytes`."""
        names = [tier.name for tier in self.tiers]
        record_bytes = self.codec.record_bytes
        return max(
            good_batch_bytes(links, source, target, record_bytes) // record_bytes
            for source in names
            for target in names
            if source != target
        )
