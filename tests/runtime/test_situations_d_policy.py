"""Situations from the field that a policy decides: freezing, scans, cycles, tiny budgets, twins."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig
from nearkv.experiments.runner import run_experiment
from nearkv.kvcache.budget import HotBudget
from nearkv.policy.base import Observation, StreamInfo
from nearkv.policy.h2o import H2o
from nearkv.policy.registry import installed_policies
from nearkv.policy.replay import AccessList, replay_accesses

POLICIES = installed_policies()
BOUNDED = [name for name, policy in POLICIES.items() if policy.bounded]


def hits_of(name, accesses, tokens, capacity):
    lists = [np.atleast_1d(np.array(access, np.int64)) for access in accesses]
    policy = POLICIES[name](StreamInfo(0, 0, tokens))
    return [step.hits for step in replay_accesses(policy, AccessList(tokens, lists), capacity)]


PROMPT, STEPS = 64, 200


def heavy_hitters(**options) -> list[set[int]]:
    """Kept tokens after each step: a new token per step, attention over the pool, budget = prompt length."""
    attraction = np.random.default_rng(2).lognormal(sigma=2, size=PROMPT + STEPS)
    policy = H2o(StreamInfo(0, 0, PROMPT + STEPS), **options)
    hot = np.ones(PROMPT, bool)
    kept = []
    for step in range(STEPS):
        selected = np.flatnonzero(hot)
        weight = attraction[selected] / attraction[selected].sum()
        hot = np.append(hot, True)  # the step's token, which nothing has attended yet
        seen = Observation(
            step=step,
            tokens=len(hot),
            sealed_tokens=len(hot),
            capacity_tokens=PROMPT,
            pinned=np.zeros(len(hot), bool),
            hot=hot,
            selected=selected,
            weight=weight,
        )
        hot = seen.check(policy.place(seen)).copy()
        kept.append(set(np.flatnonzero(hot).tolist()))
    return kept


def test_d1_without_grace_the_kept_set_freezes():
    assert heavy_hitters(grace_fraction=0.0) == [set(range(PROMPT))] * STEPS


@pytest.mark.parametrize("decay", [1.0, 0.95])
def test_d1_a_grace_window_lets_the_kept_set_turn_over(decay):
    kept = heavy_hitters(grace_fraction=0.5, decay=decay)
    for step, tokens in enumerate(kept):
        newest = PROMPT + step
        assert set(range(newest - 31, newest + 1)) <= tokens
        assert len(tokens) == PROMPT
    heavy = {token for token in kept[-1] if PROMPT <= token <= PROMPT + STEPS - 33}
    assert len(heavy) >= 8  # won their place against the prompt after the window
    assert kept[-1] & set(range(PROMPT))  # and the prompt's own heavy hitters stay


HOT_SET, SCAN = list(range(10)), list(range(10, 60))


@pytest.mark.parametrize(
    ("policy", "kept"), [("arc", 10), ("s3_fifo", 10), ("lfu", 10), ("lru", 0), ("fifo", 0)]
)
def test_d4_a_scan_larger_than_the_pool(policy, kept):
    """A set used five times, a scan of 50 tokens through a pool of 20, then the set again."""
    assert sum(hits_of(policy, HOT_SET * 5 + SCAN + HOT_SET, 60, 20)[-10:]) == kept


@pytest.mark.parametrize("policy", ["lru", "fifo"])
def test_d5_a_cycle_just_larger_than_the_pool_never_hits(policy):
    cycle = list(range(105)) * 4
    assert sum(hits_of(policy, cycle, 105, 100)) == 0


def test_d5_the_optimum_hits_on_a_cycle_just_larger_than_the_pool():
    """Of 105 tokens in turn the best pool on demand keeps 100: 5 misses a round after the first."""
    hits = hits_of("belady", list(range(105)) * 4, 105, 100)
    assert [sum(hits[start : start + 105]) for start in (0, 105, 210, 315)] == [0, 100, 100, 100]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("hot_fraction", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_d8_tiny_contexts_keep_at_least_one_token(policy, hot_fraction, tokens, trace_of, fake_device):
    """Before each of two steps `tokens` (then one more) are in context; the step's own comes on top."""
    config = ExperimentConfig(
        Path("a"), PolicyConfig(policy), hot_fraction=hot_fraction, recent_fraction=0.0, sinks=0
    )
    result = run_experiment(config, trace_of(tokens, 2, streams=1), fake_device())
    assert [record.position for record in result.records] == [tokens, tokens + 1]
    for record in result.records:
        assert 1 <= record.hot_tokens <= record.position + 1
        assert record.selected_tokens >= 1
        assert record.mass_kept > 0


def observe(sealed, capacity, hot, step=0):
    return Observation(
        step=step,
        tokens=sealed,
        sealed_tokens=sealed,
        capacity_tokens=capacity,
        pinned=np.zeros(sealed, bool),
        hot=hot,
        selected=np.empty(0, np.int64),
        weight=np.empty(0),
        query=np.ones((1, 64), np.float16),
        new_keys=np.ones((sealed if step == 0 else 0, 64), np.float16),
        score=lambda _: np.full(sealed, 1 / max(sealed, 1)),
        next_weight=np.zeros(sealed + 1),
        next_use=np.zeros(sealed, np.int64),
    )


@pytest.mark.parametrize("policy", BOUNDED)
@pytest.mark.parametrize("hot_fraction", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_d8_tiny_pools_hold_exactly_their_share(policy, hot_fraction, tokens):
    capacity = HotBudget(hot_fraction, 0.0, 0).capacity_tokens(tokens, tokens)
    assert capacity == int(hot_fraction * tokens)
    placed = POLICIES[policy](StreamInfo(0, 0, 4)).place(observe(tokens, capacity, np.ones(tokens, bool)))
    assert (placed.shape, placed.sum()) == ((tokens,), capacity)


@pytest.mark.parametrize("policy", BOUNDED)
def test_d8_half_of_a_half_is_a_quarter(policy):
    half, quarter = HotBudget(0.5, 0.0, 0), HotBudget(0.25, 0.0, 0)
    for tokens in range(70):
        once = half.capacity_tokens(tokens, tokens)
        assert half.capacity_tokens(once, once) == quarter.capacity_tokens(tokens, tokens)
    stepwise = POLICIES[policy](StreamInfo(0, 0, 64))
    first = stepwise.place(observe(64, 32, np.ones(64, bool)))
    second = stepwise.place(observe(64, 16, first.copy(), step=1))
    assert (first.sum(), second.sum()) == (32, 16)
    assert not (second & ~first).any()
    at_once = POLICIES[policy](StreamInfo(0, 0, 64)).place(observe(64, 16, np.ones(64, bool)))
    assert (second == at_once).all()


def skewed_trace(seed: int, tokens: int, steps: int, size: int) -> AccessList:
    """Favourites that change on the way, with weights, keys and queries of their own."""
    rng = np.random.default_rng(seed)
    accesses, weights = [], []
    for step in range(steps):
        if step % 40 == 0:
            share = rng.permutation(1 / np.arange(1, tokens + 1))
        accesses.append(np.sort(rng.choice(tokens, size, replace=False, p=share / share.sum())))
        weights.append(rng.dirichlet(np.ones(size)))
    keys = rng.standard_normal((tokens, 64)).astype(np.float16)
    queries = rng.standard_normal((steps, 2, 64)).astype(np.float16)
    return AccessList(tokens, accesses, weights, keys, queries)


SEPARATING = (  # with the pool's capacity
    (skewed_trace(1, 60, 240, 1), 12),
    (skewed_trace(2, 90, 240, 9), 18),
    (skewed_trace(2, 90, 240, 9), 5),  # less than a step accesses
    (skewed_trace(3, 1400, 20, 60), 1200),  # more than the window of fixed length that `streaming` keeps
)


@pytest.fixture(scope="module")
def hits_by_policy():
    """Hits in the second half of every trace, when how the pool was first filled is forgotten."""
    found = {}
    for name, policy in POLICIES.items():
        found[name] = []
        for trace, capacity in SEPARATING:
            steps = list(replay_accesses(policy(StreamInfo(0, 0, trace.tokens)), trace, capacity))
            found[name].append([step.hits for step in steps[len(steps) // 2 :]])
    return found


@pytest.mark.parametrize(("first", "second"), list(combinations(POLICIES, 2)))
def test_d9_some_trace_separates_every_two_policies(first, second, hits_by_policy):
    assert hits_by_policy[first] != hits_by_policy[second]


def test_d9_fifo_and_lru_differ_on_1_2_3_1_4_with_three_slots():
    """4 pushes out 1 from a FIFO, which then misses it, and 2 from an LRU pool."""
    assert hits_of("fifo", [1, 2, 3, 1, 4, 1], 5, 3) == [0, 0, 0, 1, 0, 0]
    assert hits_of("lru", [1, 2, 3, 1, 4, 1], 5, 3) == [0, 0, 0, 1, 0, 1]
