"""Placement on bank groups and channels."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.pam.mapping import UNPLACED, WINDOW_STEPS, DeviceMapping, DeviceShape, least_loaded

HBM_RANK = DeviceShape(groups=4, banks=4)


def test_greedy_by_hand():
    np.testing.assert_array_equal(least_loaded(np.array([3.0, 0, 1]), 5, 1.0), [1, 1, 2, 1, 2])
    assert len(least_loaded(np.array([1.0]), 0, 1.0)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_at_once_is_one_after_the_other(seed):
    rng = np.random.default_rng(seed)
    load = rng.integers(0, 20, int(rng.integers(1, 9))).astype(np.float64)
    weight, count = float(rng.integers(1, 4)), int(rng.integers(1, 60))
    expected, level = [], load.copy()
    for _ in range(count):
        expected.append(int(level.argmin()))
        level[expected[-1]] += weight
    np.testing.assert_array_equal(least_loaded(load, count, weight), expected)


def test_an_empty_device_fills_evenly_at_one_row_of_every_bank():
    mapping = DeviceMapping(HBM_RANK, 32)
    mapping.place(np.arange(32))
    assert np.bincount(mapping.group).tolist() == [8] * 4
    for group in range(4):
        mine = mapping.group == group
        assert mapping.bank[mine].tolist() == [0, 1, 2, 3] * 2
        assert mapping.row[mine].tolist() == [0] * 4 + [1] * 4
    places = set(zip(mapping.group, mapping.bank, mapping.row, strict=True))
    assert len(places) == 32


def test_time_is_that_of_the_busiest_group():
    mapping = DeviceMapping(HBM_RANK, 16)
    mapping.place(np.arange(8))
    assert mapping.step_time(np.array([0, 4, 1])) == 2
    assert mapping.imbalance(np.array([0, 4, 1])) == pytest.approx(2 * 4 / 3)
    assert mapping.imbalance(np.arange(8)) == 1.0
    assert mapping.imbalance(np.array([12])) == 1.0  # not in the device


def test_ten_steps_are_remembered_and_new_tokens_avoid_busy_groups():
    mapping = DeviceMapping(HBM_RANK, 64)
    mapping.place(np.arange(16))
    busy = np.flatnonzero(mapping.group == 0)
    for _ in range(WINDOW_STEPS):
        mapping.observe(busy)
    assert mapping.activations.tolist() == [40, 0, 0, 0]
    mapping.place(np.arange(16, 28), expected=10.0)
    assert np.bincount(mapping.group[16:28], minlength=4).tolist() == [0, 4, 4, 4]
    for _ in range(WINDOW_STEPS):
        mapping.observe(np.arange(0))
    assert mapping.activations.tolist() == [0] * 4


def test_balancing_beats_round_robin_on_skewed_accesses():
    """The case of the paper's ablation: hot tokens that arrived together lie in different groups."""
    rng = np.random.default_rng(5)
    shape, tokens = DeviceShape(groups=8, banks=4), 512
    hot = np.arange(0, tokens, 8)  # in turn, all of them in group 0
    balanced, fixed = DeviceMapping(shape, tokens), DeviceMapping(shape, tokens)
    fixed.place(np.arange(tokens))
    assert fixed.imbalance(hot) == 8.0
    for first in range(0, tokens, 16):
        arrived = np.arange(first, first + 16)
        balanced.place(arrived)
        for _ in range(4):
            seen = hot[hot < first + 16]
            balanced.observe(rng.permutation(seen)[: max(1, len(seen) // 2)])
    assert balanced.imbalance(hot) < 3.0


def test_removed_tokens_may_come_back_elsewhere():
    mapping = DeviceMapping(HBM_RANK, 8)
    mapping.place(np.arange(4))
    mapping.remove(np.array([1]))
    assert mapping.group[1] == UNPLACED
    mapping.place(np.array([1]))
    assert (mapping.group[1], mapping.bank[1]) == (0, 1)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda _: DeviceShape(groups=0, banks=1), "groups is 0; allowed: from 1"),
        (lambda m: m.place(np.array([0])), "token 0 is in the device already"),
        (lambda m: m.place(np.array([5]), expected=0.0), "expected is 0.0; allowed: a finite"),
        (lambda m: m.place(np.array([5]), expected=np.inf), "expected is inf; allowed: a finite"),
        (lambda m: m.place(np.array([5, 5])), r"tokens are \[5 5\]; allowed: each once"),
        (lambda m: m.place(np.array([5, 8])), "tokens are 5 to 8; allowed: 0 to 7"),
        (lambda m: m.place(np.array([-1])), "tokens are -1 to -1; allowed: 0 to 7"),
    ],
)
def test_bad_arguments_are_refused(ask, message):
    mapping = DeviceMapping(HBM_RANK, 8)
    mapping.place(np.array([0]))
    with pytest.raises(ValueError, match=message):
        ask(mapping)
