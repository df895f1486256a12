"""Small caches over movers whose legs end in random order, fail or stall; rows that name their token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from nearkv.kvcache.cache import TieredKVCache
from nearkv.kvcache.clock import SimulatedClock
from nearkv.kvcache.config import CacheConfig
from nearkv.kvcache.mover import DescribedLinks, Leg, Mover, Outcome, PathTimes, SimulatedMover
from nearkv.kvcache.tiers import HEADER_BYTES, TierConfig, TierRole

HEAD_DIM = 4
RECORD_BYTES = 2 * HEAD_DIM * 2
SLOT_BYTES = RECORD_BYTES + HEADER_BYTES
LINKS = DescribedLinks(PathTimes(1_000, 1e9, 1_000, 2e9))

Fault = Callable[[Leg, str, str], Outcome | None]


@dataclass
class RandomMover(Mover):
    """Every leg takes a random time of its own; `fault` says how it ends, None for never."""

    clock: SimulatedClock
    seed: int
    fault: Fault
    started: list[tuple[Leg, str, str]] = field(default_factory=list)
    links = LINKS

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def start(self, leg, source, target, nbytes, done):
        assert nbytes > 0
        self.started.append((leg, source, target))
        outcome = self.fault(leg, source, target)
        if outcome is None:
            return None
        return self.clock.at(self.clock.now_ps + int(self.rng.integers(1, 10_000)), lambda: done(outcome))


def pattern(request: int, streams, tokens) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values float16 [..., HEAD_DIM] whose bits follow from (request, stream, token, channel)."""
    streams, tokens = np.broadcast_arrays(np.asarray(streams), np.asarray(tokens))
    place = (np.uint64(request) << np.uint64(40)) + (streams.astype(np.uint64) << np.uint64(24))
    place = (place + tokens.astype(np.uint64))[..., None] * np.uint64(16) + np.arange(8, dtype=np.uint64)
    # SplitMix64's last steps (Steele et al., OOPSLA 2014): neighbours differ in half their bits.
    mixed = (place ^ (place >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (mixed >> np.uint64(40)).astype(np.uint16) & np.uint16(0xBFFF)  # finite
    both = bits.view(np.float16)
    return both[..., :HEAD_DIM], both[..., HEAD_DIM:]


@dataclass
class Rig:
    """A cache, its clock and mover, and the numbers that stand for its sequences in the pattern."""

    config: CacheConfig
    mover: Mover
    clock: SimulatedClock
    recompute: list[tuple[str, list[int], list[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = TieredKVCache(
            self.config,
            self.clock,
            self.mover,
            lambda name, streams, tokens: self.recompute.append((name, streams.tolist(), tokens.tolist())),
        )
        self.requests: dict[str, int] = {}

    def rows(self, name: str, first: int, count: int):
        request = self.requests.setdefault(name, len(self.requests) + 1)
        return pattern(request, np.arange(self.config.streams)[:, None], np.arange(first, first + count))

    def start(self, name: str, tokens: int = 0, keys=()) -> int:
        held = self.cache.start(name, keys)
        if tokens > held:
            self.append(name, tokens - held)
        return held

    def append(self, name: str, count: int) -> None:
        self.cache.append(name, *self.rows(name, self.cache.tokens(name), count))

    def step(self, *names: str, count: int = 1) -> None:
        self.cache.step({name: self.rows(name, self.cache.tokens(name), count) for name in names})

    def everything(self, name: str):
        return np.arange(self.config.streams)[:, None], np.arange(self.cache.tokens(name))

    def check(self, name: str, streams=None, tokens=None, request: int | None = None):
        """Read rows, all by default, and compare every byte that is not missing with the pattern."""
        if streams is None:
            streams, tokens = self.everything(name)
        found = self.cache.read(name, streams, tokens)
        keys, values = pattern(self.requests[name] if request is None else request, streams, tokens)
        here = ~found.missing
        for got, want in ((found.keys, keys), (found.values, values)):
            assert (got.view(np.uint16)[here] == want.reshape(-1, HEAD_DIM).view(np.uint16)[here]).all()
        return found

    def wanted(self, name: str, value: int) -> np.ndarray:
        return np.full((self.config.streams, self.cache.tokens(name)), value, np.int8)

    def idle(self) -> None:
        self.cache.engine.run_idle()

    def pinned(self) -> dict[str, int]:
        return {name: count.pinned for name, count in self.cache.occupancy().items()}


def make_rig(
    *,
    hot_rows: int | tuple[int, ...] = 256,
    cold_blocks: int | tuple[int, ...] = 64,
    streams: tuple[int, int] = (1, 2),
    block_tokens: int = 8,
    seed: int | None = None,
    fault: Fault | None = None,
    reserve_rows: int = 0,
    **options,
) -> Rig:
    hot = (hot_rows,) if isinstance(hot_rows, int) else hot_rows
    cold = (cold_blocks,) if isinstance(cold_blocks, int) else cold_blocks
    block_bytes = SLOT_BYTES * streams[0] * streams[1] * block_tokens
    row_tiers = [
        TierConfig(f"hot{i}", TierRole.ROWS, count * SLOT_BYTES, reserve_rows) for i, count in enumerate(hot)
    ]
    block_tiers = [
        TierConfig(f"cold{i}", TierRole.BLOCKS, count * block_bytes) for i, count in enumerate(cold)
    ]
    config = CacheConfig(
        model="test",
        layers=streams[0],
        kv_heads=streams[1],
        head_dim=HEAD_DIM,
        tiers=(*row_tiers, *block_tiers),
        max_blocks=options.pop("max_blocks", 2 * sum(cold) + sum(hot) // (streams[0] * streams[1]) + 8),
        block_tokens=block_tokens,
        batch_rows=options.pop("batch_rows", 32),
        timeout_ps=options.pop("timeout_ps", 10**9),
    )
    config = replace(config, **options)
    clock = SimulatedClock()
    mover: Mover = SimulatedMover(clock, LINKS)
    if seed is not None or fault is not None:
        mover = RandomMover(clock, seed or 0, fault or (lambda *_: Outcome.OK))
    return Rig(config, mover, clock)


@pytest.fixture
def rig_of() -> Callable[..., Rig]:
    return make_rig


@pytest.fixture
def pattern_of() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    return pattern
