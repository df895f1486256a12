"""What holds for every policy and every odd pool: the rules, causality, determinism; replay and future."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkv.policy.base import NEVER_USED, Observation, StreamInfo
from nearkv.policy.future import FutureAccesses
from nearkv.policy.lru import Lru
from nearkv.policy.quest import Quest
from nearkv.policy.registry import installed_policies
from nearkv.policy.replay import AccessList, replay_accesses

POLICIES = installed_policies()
CAUSAL = [name for name, policy in POLICIES.items() if not policy.needs_future]
BOUNDED = [name for name, policy in POLICIES.items() if policy.bounded]
MAX_TOKENS = 96
HEAD_DIM = 8


@st.composite
def lives(draw) -> list[dict]:
    """The steps of a stream that grows, is sealed in blocks, and whose capacity and pins jump about.

    Capacities go from 0 to beyond all tokens, pins from none to all that fit; a step selects none to all.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    block = draw(st.sampled_from([1, 5, 16]))
    tokens = draw(st.integers(0, 40))
    steps = []
    for step in range(-1, draw(st.integers(0, 14))):
        tokens += step >= 0
        sealed = tokens // block * block
        capacity = draw(st.sampled_from([0, 1, sealed // 3, sealed, sealed + 7]))
        pins = draw(st.sampled_from([0, min(capacity, sealed) // 2, min(capacity, sealed)]))
        pinned = np.zeros(sealed, bool)
        pinned[rng.permutation(sealed)[:pins]] = True
        selects = 0 if step < 0 else draw(st.sampled_from([0, 1, tokens // 3, tokens]))
        steps.append(
            {
                "step": step,
                "tokens": tokens,
                "sealed_tokens": sealed,
                "capacity_tokens": capacity,
                "pinned": pinned,
                "selected": np.sort(rng.permutation(tokens)[:selects]),
                "weight": rng.dirichlet(np.ones(selects)) if selects else np.empty(0),
                "query": rng.standard_normal((2, HEAD_DIM)).astype(np.float16) if step >= 0 else None,
                "keys": rng.standard_normal((sealed, HEAD_DIM)).astype(np.float16),
                "next_weight": rng.random(tokens + 1),
                "next_use": rng.choice([step + 1, step + 9, NEVER_USED], sealed),
            }
        )
    return steps


def attention(keys, query):
    """Softmax over the sealed keys, mean over the query's heads."""
    weights = np.exp(keys.astype(float) @ query.T)
    return (weights / weights.sum(axis=0)).mean(axis=1)


def run(name: str, steps: list[dict]) -> list[np.ndarray]:
    """Checked placements of a fresh instance; newly sealed tokens are hot when it first sees them."""
    policy = POLICIES[name](StreamInfo(0, 0, MAX_TOKENS, seed=3))
    hot, placements = np.empty(0, bool), []
    for fields in steps:
        fields = dict(fields)
        keys, sealed = fields.pop("keys"), fields["sealed_tokens"]
        seen = Observation(
            **{k: v.copy() if isinstance(v, np.ndarray) else v for k, v in fields.items()},
            hot=np.concatenate([hot, np.ones(sealed - len(hot), bool)]),
            new_keys=keys[len(hot) :],
            score=partial(attention, keys),
        )
        placement = policy.place(seen)
        hot = (seen.check(placement) if policy.bounded else placement).copy()
        placements.append(hot)
    return placements


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=60, derandomize=True)
@given(steps=lives())
def test_every_pool_is_legal_and_repeatable(name, steps):
    placements = run(name, steps)
    for again, once in zip(run(name, steps), placements, strict=True):
        assert np.array_equal(again, once)
    if not POLICIES[name].bounded:
        assert all(placement.all() for placement in placements)


@pytest.mark.parametrize("name", CAUSAL)
@settings(deadline=None, max_examples=30, derandomize=True)
@given(steps=lives(), others=lives(), cut=st.integers(0, 14))
def test_a_placement_depends_on_nothing_later(name, steps, others, cut):
    """The future fields are replaced everywhere, the steps after the cut by those of another life."""
    blind = [fields | {"next_weight": None, "next_use": None} for fields in steps[:cut]]
    grown = [
        later
        for later in others[cut:]
        if blind and all(later[size] >= blind[-1][size] for size in ("tokens", "sealed_tokens"))
    ]
    whole, changed = run(name, steps)[: len(blind)], run(name, blind + grown)[: len(blind)]
    assert all(np.array_equal(a, b) for a, b in zip(whole, changed, strict=True))


@pytest.mark.parametrize("name", [name for name in BOUNDED if name not in ("streaming", "pam_seed")])
def test_a_pool_with_room_for_all_keeps_what_is_hot(name):
    """Not the window of fixed length, nor the classes that make a token leave a pool with room."""
    trace = AccessList(
        20,
        [np.arange(20)] * 3,
        keys=np.zeros((20, HEAD_DIM), np.float16),
        queries=np.zeros((3, 1, HEAD_DIM), np.float16),
    )
    for capacity in (20, 27):
        steps = list(replay_accesses(POLICIES[name](StreamInfo(0, 0, 20)), trace, capacity))
        assert [step.hits for step in steps[1:]] == [20, 20]


def test_the_next_access_by_walking_forwards():
    rng = np.random.default_rng(9)
    accesses = [np.sort(rng.choice(12, 3, replace=False)) for _ in range(15)]
    future = FutureAccesses(accesses, 12)
    for step in (-1, 0, 1, 4, 4, 9, 14, 20):
        found = future.after(step)
        for token in range(12):
            later = [s for s in range(step + 1, 15) if token in accesses[s]]
            assert found[token] == (later[0] if later else NEVER_USED)
    with pytest.raises(ValueError, match="step is 3; allowed: 20 or later"):
        future.after(3)


@pytest.mark.parametrize("accessed", [[0, 5], [-1], [2, 1], [1, 1]])
def test_a_list_of_accesses_is_checked(accessed):
    with pytest.raises(
        ValueError, match=r"step 1 accesses \[.*\]; allowed: distinct tokens 0 to 4, ascending"
    ):
        AccessList(5, [np.array([0]), np.array(accessed)])


def test_replaying_counts_hits_before_it_places():
    trace = AccessList(5, [np.array([0, 1]), np.array([1, 2]), np.array([0, 1, 2])])
    steps = list(replay_accesses(Lru(StreamInfo(0, 0, 5)), trace, 3, np.array([0, 0, 0, 0, 1], bool)))
    assert [step.hits for step in steps] == [0, 1, 2]
    assert np.flatnonzero(steps[-1].placement).tolist() == [1, 2, 4]


def test_replaying_needs_keys_for_who_asks_for_them():
    with pytest.raises(ValueError, match="keys or queries is None; Quest needs both"):
        next(replay_accesses(Quest(StreamInfo(0, 0, 5)), AccessList(5, [np.array([0])]), 3))


def test_fill_chooses_among_what_it_is_told():
    """Token 0 is pinned, 3 hot, 1 accessed; 5 is accessed in the tail, which is hot in any case."""
    seen = Observation(
        step=0,
        tokens=6,
        sealed_tokens=5,
        capacity_tokens=3,
        pinned=np.array([1, 0, 0, 0, 0], bool),
        hot=np.array([1, 0, 0, 1, 0], bool),
        selected=np.array([1, 5]),
        weight=np.array([0.5, 0.5]),
    )
    assert seen.accessed().tolist() == [1]
    assert np.flatnonzero(seen.at_hand()).tolist() == [0, 1, 3]
    priority = np.arange(5)
    assert np.flatnonzero(seen.fill(priority)).tolist() == [0, 3, 4]
    assert np.flatnonzero(seen.fill(priority, seen.at_hand())).tolist() == [0, 1, 3]
    assert np.flatnonzero(seen.fill(priority, np.zeros(5, bool))).tolist() == [0]
    with pytest.raises(ValueError, match=r"among has shape \(6,\); allowed: \(5,\)"):
        seen.fill(priority, np.ones(6, bool))
