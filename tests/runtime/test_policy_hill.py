"""HillInfer's placement: hit-rate table, fitting to the capacity, equal-volume swaps."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.policy.base import Observation, StreamInfo
from nearkv.policy.hill import RATE_MAX, Hill

SEALED = 8
STREAM = StreamInfo(layer=0, kv_head=0, max_tokens=16)


def see(selected=(), hot=(), pinned=(), capacity=3, sealed=SEALED, step=0) -> Observation:
    def mask(tokens):
        found = np.zeros(sealed, bool)
        found[list(tokens)] = True
        return found

    return Observation(
        step=step,
        tokens=sealed + 1,
        sealed_tokens=sealed,
        capacity_tokens=capacity,
        pinned=mask(pinned),
        hot=mask(hot),
        selected=np.array(selected, np.int64),
        weight=np.ones(len(selected)) / max(len(selected), 1),
    )


def placed(policy: Hill, seen: Observation) -> list[int]:
    return np.flatnonzero(policy.place(seen)).tolist()


def test_a_selected_cold_token_replaces_the_coldest_hot_one():
    policy = Hill(STREAM)
    # 7 was selected and stays; of 5 and 6, never selected, the older one makes room for 2.
    assert placed(policy, see(selected=(2, 7), hot=(5, 6, 7))) == [2, 6, 7]


def test_nothing_moves_without_a_hotter_cold_token():
    policy = Hill(STREAM)
    assert placed(policy, see(selected=(5, 6, 7), hot=(5, 6, 7))) == [5, 6, 7]
    assert placed(policy, see(selected=(), hot=(5, 6, 7), step=1)) == [5, 6, 7]


def test_swaps_are_of_equal_volume():
    rng = np.random.default_rng(5)
    policy, hot = Hill(StreamInfo(0, 0, 400)), np.arange(60)
    for step in range(30):
        seen = see(np.sort(rng.choice(300, 40, replace=False)), hot, (0, 1), 60, 300, step)
        new = policy.place(seen)
        assert (new & ~seen.hot).sum() == (seen.hot & ~new).sum()
        assert new[seen.pinned].all()
        hot = np.flatnonzero(new)


def test_swapping_leaves_no_hotter_token_cold():
    rng = np.random.default_rng(6)
    policy = Hill(StreamInfo(0, 0, 400))
    seen = see(np.sort(rng.choice(300, 90, replace=False)), np.arange(60), (0, 1), 60, 300)
    new = policy.place(seen)
    rate = policy.rate[:300]
    assert rate[~new].max() <= rate[new & ~seen.pinned].min()


def test_pins_push_out_the_coldest():
    policy = Hill(STREAM)
    assert placed(policy, see(selected=(5, 6, 7), hot=(5, 6, 7), pinned=(0,))) == [0, 6, 7]


def test_a_pool_that_grew_is_filled_with_the_hottest_then_the_newest():
    policy = Hill(STREAM)
    assert placed(policy, see(selected=(1, 7), hot=(7,), capacity=3)) == [1, 6, 7]


def test_a_pool_that_shrank_drops_the_coldest():
    policy = Hill(STREAM)
    assert placed(policy, see(selected=(2, 7), hot=(2, 5, 6, 7), capacity=2)) == [2, 7]
    assert placed(policy, see(hot=(2, 7), capacity=0, step=1)) == []


def test_rates_decay_so_that_the_present_counts():
    policy = Hill(STREAM, decay_shift=3)
    for step in range(3):
        policy.place(see(selected=(1,), hot=(5, 6, 7), step=step))
    early = int(policy.rate[1])
    gain = RATE_MAX >> 3
    assert early == pytest.approx(gain * (1 + 7 / 8 + 49 / 64), abs=3)
    for step in range(3, 40):
        policy.place(see(selected=(2,), hot=(5, 6, 7), step=step))
    assert policy.rate[2] > 10 * policy.rate[1]


def test_without_decay_the_table_counts():
    policy = Hill(STREAM, decay_shift=0)
    for step in range(5):
        policy.place(see(selected=(1, 4), hot=(5, 6, 7), step=step))
    assert policy.rate[:SEALED].tolist() == [0, 5, 0, 0, 5, 0, 0, 0]


@pytest.mark.parametrize("decay_shift", [0, 1, 3, 15])
def test_the_table_saturates_in_two_bytes(decay_shift):
    policy = Hill(STREAM, decay_shift=decay_shift)
    policy.rate[:] = RATE_MAX - 1
    for step in range(4):
        policy.place(see(selected=(1,), hot=(5, 6, 7), step=step))
    assert policy.rate.dtype.itemsize == 2
    assert policy.rate[1] >= policy.rate[0]
    assert policy.rate[1] >= RATE_MAX - (1 << decay_shift)


def test_a_surge_below_the_threshold_moves_nothing():
    calm, eager = Hill(STREAM, surge=1.0), Hill(STREAM, surge=0.5)
    seen = see(selected=(2,), hot=(5, 6, 7))
    assert placed(eager, seen) == [2, 6, 7]
    assert placed(calm, seen) == [5, 6, 7]  # one hit is not above one hit
    assert placed(calm, see(selected=(2,), hot=(5, 6, 7), step=1)) == [2, 6, 7]


def test_the_tail_is_counted_before_it_is_sealed():
    policy = Hill(STREAM, decay_shift=0)
    policy.place(see(selected=(8,), hot=(5, 6, 7)))  # token 8 is in the tail
    assert policy.rate[8] == 1
