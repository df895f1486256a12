"""Attention over tiers by either merge: against float64, over partitions, beside Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.pam.attention import MOST_VALUE, ExactMerge, ExponentialMerge, Shard
from nearkv_sim.golden.papers import hierarchical_attention

MERGES = [ExponentialMerge(), ExactMerge()]
HEAD_DIM = 64


def tokens(rng, count: int, spread: float = 8.0):
    values = rng.standard_normal((count, HEAD_DIM)).astype(np.float16).astype(np.float64)
    return rng.standard_normal(count) * spread, values


def full(scores, values):
    weight = np.exp2(scores - scores.max())
    return weight @ values / weight.sum()


def split(scores, values, tier):
    return [Shard(scores[tier == which], values[tier == which]) for which in range(3)]


@pytest.mark.parametrize("merge", MERGES, ids=["exponential", "exact"])
@pytest.mark.parametrize("count", [1, 2, 100, 5000])
def test_tiers_together_are_attention(merge, count):
    rng = np.random.default_rng(count)
    scores, values = tokens(rng, count)
    found = merge.attend(split(scores, values, rng.integers(0, 3, count)))
    bound = 1e-12 if isinstance(merge, ExponentialMerge) else 1e-5
    assert np.linalg.norm(found - full(scores, values)) <= bound * np.linalg.norm(full(scores, values))


def test_the_exact_merge_gives_the_same_bits_for_every_partition_and_order():
    rng = np.random.default_rng(3)
    scores, values = tokens(rng, 2000, spread=30.0)
    outputs, rescaled = set(), set()
    for _ in range(20):
        order = rng.permutation(2000)
        shards = split(scores[order], values[order], rng.integers(0, 3, 2000))
        rng.shuffle(shards)
        outputs.add(ExactMerge().attend(shards).tobytes())
        rescaled.add(ExponentialMerge().attend(shards).tobytes())
    assert len(outputs) == 1
    assert len(rescaled) > 1


def test_algorithm_1_as_printed_is_not_attention():
    """Three levels as the article has them: the printed l = m + log Σ against a linear l."""
    rng = np.random.default_rng(7)
    scores, values = tokens(rng, 512, spread=2.0)
    natural = scores * np.log(2)
    expected = full(scores, values)
    linear = hierarchical_attention(natural, values, (4, 4, 4), printed=False)
    literal = hierarchical_attention(natural, values, (4, 4, 4), printed=True)
    np.testing.assert_allclose(linear, expected, rtol=1e-9, atol=1e-12)
    tiers = np.repeat(np.arange(3), [200, 200, 112])
    np.testing.assert_allclose(ExponentialMerge().attend(split(scores, values, tiers)), linear, atol=1e-12)
    assert np.linalg.norm(literal) > 2 * np.linalg.norm(expected)


def test_an_empty_tier_changes_nothing():
    rng = np.random.default_rng(11)
    scores, values = tokens(rng, 50)
    whole, empty = Shard(scores, values), Shard(np.zeros(0), np.zeros((0, HEAD_DIM)))
    for merge in MERGES:
        np.testing.assert_array_equal(merge.attend([whole, empty]), merge.attend([whole]))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: ExactMerge().attend([]), "shards hold no token"),
        (lambda: ExponentialMerge().attend([Shard(np.zeros(0), np.zeros((0, 2)))]), "shards hold no token"),
        (lambda: Shard(np.zeros(2), np.zeros((3, 2))), "scores have shape"),
        (lambda: Shard(np.array([np.inf]), np.zeros((1, 2))), "not finite"),
        (lambda: ExactMerge().attend([Shard(np.zeros(1), np.full((1, 1), MOST_VALUE))]), "a value is 65536"),
        (
            lambda: ExactMerge().attend([Shard(np.zeros(2**20 + 1), np.zeros((2**20 + 1, 1)))]),
            "tokens is 1048577",
        ),
    ],
)
def test_bad_shards_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
