"""Hot pool, budget and the tiered stream: rows are where they are said to be, and nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.kvcache.budget import HotBudget, share_ceil, share_floor
from nearkv.kvcache.hot_pool import FIRST_SLOTS, HotPool
from nearkv.kvcache.stream import TieredStream
from nearkv_hdl.spec.block_header import StreamIdentity

HEAD_DIM, BLOCK = 64, 128


def rows(tokens) -> tuple[np.ndarray, np.ndarray]:
    """Rows that name their token."""
    keys = np.repeat(np.asarray(tokens, np.float16)[:, None], HEAD_DIM, axis=1)
    return keys, -keys


@pytest.fixture
def tier_of(fake_device):
    def make(tokens: int, max_tokens: int = 1024):
        device = fake_device()
        tier = TieredStream(device.open_stream("s", HEAD_DIM, StreamIdentity()), HEAD_DIM, max_tokens, BLOCK)
        tier.append(*rows(range(tokens)))
        tier.seal_full_blocks()
        return tier, device

    return make


def test_shares_are_exact_for_the_decimal_number_as_written():
    assert share_ceil(0.07, 100) == 7  # 0.07 * 100 is above 7 in floating point
    assert share_floor(0.29, 100) == 29  # 0.29 * 100 is below 29
    assert [share_ceil(0.1, n) for n in (0, 1, 10, 11)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("hot", "tokens", "sealed", "capacity"),
    [
        (0.2, 300, 256, 16),  # 60 in all, 44 of them the tail
        (0.2, 300, 300, 60),
        (0.1, 300, 256, 0),  # the tail alone is larger
        (0.0, 300, 256, 0),
        (1.0, 300, 256, 256),
        (0.2, 5, 0, 0),
    ],
)
def test_the_tail_counts_against_the_pool(hot, tokens, sealed, capacity):
    assert HotBudget(hot, 0.0, 0).capacity_tokens(tokens, sealed) == capacity


def test_pins_are_the_sinks_and_the_newest():
    pinned = HotBudget(0.5, 0.2, 2).pinned(140, 128)  # 28 newest, 12 of them in the tail
    assert np.flatnonzero(pinned).tolist() == [0, 1, *range(112, 128)]


@pytest.mark.parametrize("sinks", [0, 3, 500])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 300, 384])
def test_pins_always_fit(sinks, fraction, tokens):
    sealed = tokens // BLOCK * BLOCK
    budget = HotBudget(fraction, fraction, sinks)
    assert budget.pinned(tokens, sealed).sum() <= budget.capacity_tokens(tokens, sealed) <= sealed


def test_slots_are_reused_and_rows_survive_growth():
    pool = HotPool(HEAD_DIM, 4096)
    pool.add(np.arange(10), *rows(range(10)))
    pool.drop(np.array([3, 5]))
    assert len(pool) == 8
    more = np.arange(100, 100 + 2 * FIRST_SLOTS)
    pool.add(more, *rows(more))
    tokens = np.array([4, 100, 9, 355])
    keys, values = pool.rows(tokens)
    assert (keys[:, 0] == tokens).all()
    assert (values == -keys).all()
    assert np.flatnonzero(pool.holds(12)).tolist() == [0, 1, 2, 4, 6, 7, 8, 9]


def test_the_pool_refuses_to_serve_or_drop_what_it_does_not_hold():
    pool = HotPool(HEAD_DIM, 16)
    pool.add(np.arange(4), *rows(range(4)))
    for action in (pool.rows, pool.drop):
        with pytest.raises(ValueError, match="token 7 is not hot"):
            action(np.array([2, 7]))
    with pytest.raises(ValueError, match="token 2 is hot already"):
        pool.add(np.array([2]), *rows([2]))


def test_full_blocks_are_sealed_once_and_stay_hot_until_placed(tier_of):
    tier, device = tier_of(300)
    assert (tier.sealed_blocks, tier.sealed_tokens) == (2, 256)
    assert tier.hot().all()
    sealed_bytes = device.counters.payload_bytes_to_device
    assert tier.seal_full_blocks() == 0
    assert device.counters.payload_bytes_to_device == sealed_bytes == 256 * HEAD_DIM * 2 * 2


def test_every_row_is_the_tokens_own_wherever_it_lies(tier_of):
    tier, _ = tier_of(300)
    rng = np.random.default_rng(3)
    for _step in range(20):
        placement = rng.random(256) < 0.3
        tier.place(placement)
        assert (tier.hot() == np.concatenate([placement, np.ones(44, bool)])).all()
        tokens = np.sort(rng.choice(300, 50, replace=False))
        keys, values = tier.read(tokens)
        assert (keys == rows(tokens)[0]).all()
        assert (values == rows(tokens)[1]).all()


def test_only_missing_rows_are_fetched_and_promotion_reuses_them(tier_of):
    tier, device = tier_of(300)
    hot = np.zeros(256, bool)
    hot[:10] = True
    moves = tier.place(hot)
    assert (moves.promoted_tokens, moves.promotion_read_tokens, moves.demoted_tokens) == (0, 0, 246)
    assert device.fetches == []  # demotion moves nothing
    tier.read(np.array([5, 20, 30, 280]))
    assert device.fetches == [[20, 30]]
    hot[[20, 40]] = True
    moves = tier.place(hot)
    assert (moves.promoted_tokens, moves.promotion_read_tokens, moves.demoted_tokens) == (2, 1, 0)
    assert device.fetches[1:] == [[40]]
    tier.place(hot)
    assert len(device.fetches) == 2


def test_rows_fetched_for_one_step_do_not_serve_the_next(tier_of):
    tier, device = tier_of(300)
    nothing = np.zeros(256, bool)
    for _step in range(2):
        tier.place(nothing)
        tier.read(np.array([20]))
    assert device.fetches == [[20], [20]]
