"""Jobs larger than a unit, and selections of several units: exact merges, with the model and with the RTL."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkv_sim.golden.topk import k_highest
from nearkv_sim.golden.topk_merge import merge_selections, select_in_parts


def test_by_hand():
    scores = np.array([5, 1, 5, 9, 5, 0, 5])
    # Jobs of four: 5 1 5 9 keeps 5 9 (positions 0, 3); 5 9 5 0 keeps the same two; then 5 9 5.
    assert select_in_parts(scores, 2, 4, k_highest).tolist() == [0, 3]
    parts = [(np.array([3, 4]), np.array([9, 5])), (np.array([0, 2]), np.array([5, 5]))]
    tokens, values = merge_selections(parts, 2, 4, k_highest)
    assert (tokens.tolist(), values.tolist()) == ([0, 3], [5, 9])


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-3, 3), max_size=60),
    capacity=st.integers(1, 20),
    share=st.floats(0, 1, exclude_max=True),
)
def test_parts_equal_the_whole(scores, capacity, share):
    k = int(share * capacity)
    chosen = select_in_parts(np.array(scores, np.int64), k, capacity, k_highest)
    np.testing.assert_array_equal(chosen, k_highest(np.array(scores, np.int64), k))


@settings(deadline=None)
@given(data=st.data())
def test_any_partition_over_units_gives_the_same_selection(data):
    scores = np.array(data.draw(st.lists(st.integers(-3, 3), max_size=60)), np.int64)
    n = len(scores)
    unit_of = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int64)
    k = data.draw(st.integers(0, 15))
    parts = []
    for unit in data.draw(st.permutations(range(4))):
        tokens = np.flatnonzero(unit_of == unit)
        chosen = tokens[k_highest(scores[tokens], k)]
        parts.append((chosen, scores[chosen]))
    tokens, values = merge_selections(parts, k, 16, k_highest)
    np.testing.assert_array_equal(tokens, k_highest(scores, k))
    np.testing.assert_array_equal(values, scores[tokens])


def rtl_select(unit, make_job):
    """`select` of the merges, done by a compiled unit; every job is compared with the golden model, too."""

    def select(scores, k):
        (result,), _ = unit.run([make_job(scores, k)])
        return result.positions

    return select


@pytest.mark.parametrize("name", ["four_lanes", "runs_of_8", "one_lane"])
def test_rtl_in_parts(bench, make_job, name):
    """The host's procedure: positions as tokens, so that it works for units with token runs as well."""
    unit = bench(name)
    config = unit.config
    rng = np.random.default_rng(71)
    for n in (0, 1, config.capacity, config.capacity + 1, 5 * config.capacity + 3):
        scores = rng.integers(-8, 8, n)
        for k in (0, 1, config.capacity // 2, config.capacity - 1):
            chosen = select_in_parts(scores, k, config.capacity, rtl_select(unit, make_job))
            np.testing.assert_array_equal(chosen, k_highest(scores, k))


def test_rtl_merges_three_tiers(bench, make_job):
    """Tokens spread over three units, each selects its own, one of them merges."""
    unit = bench("four_lanes")
    select = rtl_select(unit, make_job)
    rng = np.random.default_rng(72)
    scores = rng.integers(-20, 20, 150)
    tier = rng.integers(0, 3, 150)
    k = 20
    parts = []
    for index in (2, 0, 1):
        tokens = np.flatnonzero(tier == index)
        chosen = tokens[select_in_parts(scores[tokens], k, unit.config.capacity, select)]
        parts.append((chosen, scores[chosen]))
    tokens, _ = merge_selections(parts, k, unit.config.capacity, select)
    np.testing.assert_array_equal(tokens, k_highest(scores, k))


def test_rtl_256_ki_scores(bench, make_job):
    """Four times the capacity of smartssd_ku15p, 10 % selected."""
    unit = bench("smartssd_ku15p")
    scores = np.random.default_rng(73).normal(0, 1 << 21, 4 * 65_536).astype(np.int64)
    k = 26_214
    chosen = select_in_parts(scores, k, unit.config.capacity, rtl_select(unit, make_job))
    np.testing.assert_array_equal(chosen, k_highest(scores, k))


def test_refusals():
    scores = np.arange(9)
    for k, capacity in ((4, 4), (5, 4), (-1, 4)):
        with pytest.raises(ValueError, match=rf"k is {k} with capacity 4; allowed: 0 to 3"):
            select_in_parts(scores, k, capacity, k_highest)
    twice = [(np.array([1, 2]), np.array([0, 0])), (np.array([2]), np.array([0]))]
    with pytest.raises(ValueError, match="token 2 is in more than one selection"):
        merge_selections(twice, 1, 8, k_highest)
