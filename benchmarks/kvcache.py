"""What the cache's bookkeeping costs a decode step, beside that step's scores in numpy."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.registry import Table
from nearkv.kvcache.cache import TieredKVCache
from nearkv.kvcache.clock import SimulatedClock
from nearkv.kvcache.config import CacheConfig
from nearkv.kvcache.mover import DescribedLinks, PathTimes, SimulatedMover
from nearkv.kvcache.placement import COLD
from nearkv.kvcache.tiers import HEADER_BYTES, TierConfig, TierRole

_TOKENS, _KV_HEADS, _QUERY_GROUP, _HEAD_DIM = 1 << 17, 8, 4, 128
_ROW_DIM = 16  # of the stored rows: their bytes are data, not bookkeeping
_BLOCK_TOKENS, _CHUNK_TOKENS = 128, 1 << 13
_HOT, _SELECTED, _SWAPPED = 0.20, 0.10, 0.01  # shares of the context; of the hot rows for the last
_STEPS = 9


def _cache() -> TieredKVCache:
    slot_bytes = 2 * 2 * _ROW_DIM + HEADER_BYTES
    rows = _TOKENS * _KV_HEADS
    tiers = (
        TierConfig("dram", TierRole.ROWS, int(_HOT * rows) * slot_bytes),
        TierConfig("ssd", TierRole.BLOCKS, rows * slot_bytes),
    )
    config = CacheConfig("bench", 1, _KV_HEADS, _ROW_DIM, tiers, max_blocks=_TOKENS // _BLOCK_TOKENS)
    # Reads as on a SmartSSD (46 µs + bytes / 2.14 GB/s, vendor log); the link is not what is measured.
    links = DescribedLinks(PathTimes(46_000_000, 2.14e9, 1_000_000, 12e9))
    clock = SimulatedClock()
    return TieredKVCache(config, clock, SimulatedMover(clock, links))


def measure() -> Table:
    """128K tokens, 8 KV heads of 4 query heads, 20 % hot, 10 % read, 1 % of the hot rows swapped per step."""
    rng = np.random.default_rng(0)
    cache = _cache()
    cache.start("a")
    chunk = rng.standard_normal((2, _KV_HEADS, _CHUNK_TOKENS, _ROW_DIM)).astype(np.float16)
    for _ in range(_TOKENS // _CHUNK_TOKENS):
        cache.append("a", *chunk)
    cache.engine.run_idle()
    wanted = np.full(_KV_HEADS * _TOKENS, COLD, np.int8)
    wanted[rng.permutation(len(wanted))[: int(_HOT * len(wanted))]] = 0
    cache.place("a", wanted.reshape(_KV_HEADS, -1))
    cache.engine.run_idle()

    keys = rng.standard_normal((_KV_HEADS, _TOKENS, _HEAD_DIM), np.float32)
    queries = rng.standard_normal((_KV_HEADS, _HEAD_DIM, _QUERY_GROUP), np.float32)
    times: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[..., object], *arguments: object) -> None:
        start = time.process_time()
        action(*arguments)
        times.setdefault(name, []).append(time.process_time() - start)

    for _ in range(_STEPS):
        hot, cold = np.flatnonzero(wanted == 0), np.flatnonzero(wanted == COLD)
        swapped = int(_SWAPPED * len(hot))
        wanted[rng.choice(hot, swapped, replace=False)] = COLD
        wanted[rng.choice(cold, swapped, replace=False)] = 0
        selected = rng.choice(hot, int(_SELECTED * len(wanted)), replace=False)
        stream, token = np.divmod(np.sort(selected), _TOKENS)
        timed("scores", np.matmul, keys, queries)
        timed("rows read, each checked", cache.read, "a", stream, token)
        timed("hit rates, counts", cache.step, {"a": tuple(chunk[:, :, :0])})
        timed("placement and block table", cache.place, "a", wanted.reshape(_KV_HEADS, -1))
        timed("moves of the swapped rows", cache.engine.run_idle)
    seconds = {name: median(values) for name, values in times.items()}
    rows = [
        {"part": name, "ms": 1e3 * value, "share of the scores": value / seconds["scores"]}
        for name, value in seconds.items()
    ]
    bookkeeping = seconds["hit rates, counts"] + seconds["placement and block table"]
    rows.append(
        {
            "part": "bookkeeping",
            "ms": 1e3 * bookkeeping,
            "share of the scores": bookkeeping / seconds["scores"],
        }
    )
    return Table("A decode step over 128K tokens x 8 KV heads, CPU time, median of 9", rows)
