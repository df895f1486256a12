"""Averages, heavy hitters, StreamingLLM, PAM, Quest and the learned policy, by hand and by definition."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.policy.base import Observation, StreamInfo
from nearkv.policy.decay import NEGLIGIBLE, decay_in_place
from nearkv.policy.ema import EmaAccess, EmaMass
from nearkv.policy.h2o import H2o
from nearkv.policy.hill import Hill, HillSeedLiteral
from nearkv.policy.importance import CountImportance, Heat, ScoreImportance
from nearkv.policy.learned import Learned
from nearkv.policy.pam import Pam, PamSeed
from nearkv.policy.quest import Quest
from nearkv.policy.recency import Recency
from nearkv.policy.registry import build_policy
from nearkv.policy.replay import AccessList, replay_accesses
from nearkv.policy.streaming import Streaming

STREAM = StreamInfo(layer=0, kv_head=0, max_tokens=32)


def see(selected=(), weight=None, hot=(), capacity=3, sealed=8, step=0, tokens=None, **fields) -> Observation:
    mask = np.zeros(sealed, bool)
    mask[list(hot)] = True
    return Observation(
        step=step,
        tokens=sealed + 1 if tokens is None else tokens,
        sealed_tokens=sealed,
        capacity_tokens=capacity,
        pinned=np.zeros(sealed, bool),
        hot=mask,
        selected=np.array(selected, np.int64),
        weight=np.full(len(selected), 1 / max(len(selected), 1)) if weight is None else np.array(weight),
        **fields,
    )


def placed(policy, seen: Observation) -> list[int]:
    return np.flatnonzero(seen.check(policy.place(seen))).tolist()


def test_ema_of_accesses_ranks_by_the_sum_of_decayed_accesses():
    """decay .5: 1 was accessed in steps 0 and 1 (.375), 2 in step 2 (.5), 3 in step 1 (.25)."""
    policy = EmaAccess(STREAM, decay=0.5)
    placed(policy, see(selected=(1,)))
    placed(policy, see(selected=(1, 3), step=1))
    assert placed(policy, see(selected=(2,), step=2, capacity=1)) == [2]
    assert policy.average[:4].tolist() == [0, 0.375, 0.5, 0.25]
    assert placed(policy, see(step=3, capacity=2)) == [1, 2]


def test_ema_of_mass_weighs_an_access_by_its_attention():
    selected, weight = (1, 2, 3), (0.2, 0.7, 0.1)
    assert placed(EmaMass(STREAM), see(selected=selected, weight=weight, capacity=1)) == [2]
    assert placed(EmaAccess(STREAM), see(selected=selected, weight=weight, capacity=1)) == [3]


def test_decay_zero_is_the_last_step_alone():
    policy = EmaAccess(STREAM, decay=0.0)
    placed(policy, see(selected=(0, 1, 2)))
    assert placed(policy, see(selected=(4,), step=1, capacity=1)) == [4]
    assert policy.average.sum() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_decays_reaches_zero(dtype):
    """Rounding alone would keep the smallest number above 0 for ever."""
    values = np.array([1.0, 1e-3, 0.0], dtype)
    for step in range(64):
        decay_in_place(values, 0.9, step)
    assert values == pytest.approx([0.9**64, 1e-3 * 0.9**64, 0], rel=1e-5)
    for step in range(64, 2048):
        decay_in_place(values, 0.9, step)
        assert (values[values > 0] > NEGLIGIBLE * 0.9**64).all()
    assert values.tolist() == [0, 0, 0]


def test_h2o_never_forgets_unless_told_to():
    for decay, kept in ((1.0, [1]), (0.5, [2])):
        policy = H2o(STREAM, grace_fraction=0.0, decay=decay)
        placed(policy, see(selected=(1,), weight=(0.9,)))
        placed(policy, see(selected=(2,), weight=(0.4,), step=1))
        assert placed(policy, see(selected=(2,), weight=(0.4,), step=2, capacity=1)) == kept


def test_h2o_gives_the_newest_half_of_the_pool_grace():
    policy = H2o(STREAM)
    assert placed(policy, see(selected=(0, 1, 2), weight=(0.2, 0.5, 0.3), capacity=4)) == [1, 2, 6, 7]


def test_streaming_keeps_sinks_and_a_window_of_fixed_length():
    """Six tokens of room, but a window of 4, of which the tail and the next token take two."""
    policy = Streaming(STREAM, sink_tokens=2, window_tokens=4)
    assert placed(policy, see(capacity=6)) == [0, 1, 6, 7]
    assert placed(Recency(STREAM), see(capacity=6)) == [2, 3, 4, 5, 6, 7]
    assert placed(policy, see(capacity=3)) == [0, 1, 7]
    assert placed(policy, see(capacity=6, tokens=12)) == [0, 1]  # the tail is as long as the window


def test_streaming_does_not_grow_with_the_context():
    policy = Streaming(StreamInfo(0, 0, 5000))
    for sealed in (2000, 4000):
        assert len(placed(policy, see(sealed=sealed, capacity=sealed))) == 4 + 1020 - 2


def test_score_importance_is_the_papers_rule():
    importance = ScoreImportance(3)
    importance.update(np.array([0, 2]), np.array([0.5, 0.1]))
    importance.update(np.array([0]), np.array([0.2]))
    assert importance.value == pytest.approx([0.6 * 0.2 + 0.4 * 0.6 * 0.5, 0, 0.4 * 0.6 * 0.1])


def test_count_importance_is_the_articles_rule_over_an_interval():
    importance = CountImportance(4)
    for step in range(50):
        importance.count(np.array([0, 1] if step % 2 else [0]))
    # 0.1 · 50 is the threshold itself, not above it: nothing is hot before the second evaluation.
    assert importance.evaluate().tolist() == [Heat.WARM, Heat.WARM, Heat.COLD, Heat.COLD]
    assert importance.value == pytest.approx([5, 2.5, 0, 0])
    for _ in range(50):
        importance.count(np.array([0]))
    assert importance.evaluate().tolist() == [Heat.HOT, Heat.WARM, Heat.COLD, Heat.COLD]
    assert importance.value == pytest.approx([9.5, 2.25, 0, 0])
    assert not importance.accesses.any()


def test_counted_step_by_step_the_articles_hot_class_is_out_of_reach():
    importance = CountImportance(1)
    for _ in range(500):
        importance.count(np.array([0]))
        heat = importance.evaluate()
    assert importance.value[0] == pytest.approx(1)
    assert heat[0] != Heat.HOT


def test_pam_swaps_only_for_the_better():
    """0 and 1 are hot and never attended, like every newer cold token: among equals the hot ones stay."""
    policy = Pam(STREAM)
    assert placed(policy, see(hot=(0, 1, 2))) == [0, 1, 2]
    assert placed(policy, see(selected=(5,), hot=(0, 1, 2), step=1)) == [1, 2, 5]


def test_pam_promotes_only_at_an_evaluation():
    policy = Pam(STREAM, interval_steps=2)
    assert placed(policy, see(selected=(5,), hot=(0, 1, 2))) == [0, 1, 2]
    assert placed(policy, see(selected=(5,), hot=(0, 1, 2), step=1)) == [1, 2, 5]
    assert placed(policy, see(selected=(6,), hot=(1, 2, 5), capacity=2, step=2)) == [2, 5]


def test_pam_seed_moves_by_class():
    """Evaluated every 4 steps without memory: above 2 accesses hot, above 0 warm."""
    policy = PamSeed(STREAM, decay=0.0, interval_steps=4, hot_threshold=2.0, warm_threshold=0.0)
    hot = (0, 1, 2, 3)
    for step, selected in enumerate([(1, 4, 5), (4, 6), (4,)]):
        assert placed(policy, see(selected=selected, hot=hot, capacity=4, step=step)) == list(hot)
    # 4 is hot and comes; 1 is warm and stays, 5 and 6 are warm and stay cold; 0, 2 and 3 leave.
    assert placed(policy, see(hot=hot, capacity=4, step=3)) == [1, 4]


def test_quest_bounds_every_score_of_a_page():
    rng = np.random.default_rng(4)
    keys = rng.standard_normal((32, 64)).astype(np.float16)
    query = rng.standard_normal((1, 64)).astype(np.float16)
    policy = Quest(STREAM, page_tokens=8)
    least, largest = policy._summarise(keys.astype(np.float32))
    scores = (keys.astype(float) @ query[0].astype(float)).reshape(4, 8)
    products = query.astype(float) * np.stack([least, largest]).astype(float)
    bound = products.max(axis=0).sum(axis=1)
    assert (scores.max(axis=1) <= bound).all()
    weight = policy._weights(query.astype(np.float32), least, largest)
    assert weight == pytest.approx(np.exp(bound / 8) / np.exp(bound / 8).sum(), rel=1e-5)


def test_quest_keeps_the_page_that_may_score_highest():
    """Page 1 holds no high score itself, but its extremes in two channels promise the highest."""
    keys = np.zeros((8, 64), np.float16)
    keys[0:2, 0] = 3
    keys[2, 0], keys[3, 1] = 2, 2
    query = np.zeros((1, 64), np.float16)
    query[0, :2] = 1
    policy = Quest(STREAM, page_tokens=2)
    assert placed(policy, see(step=-1, capacity=2, new_keys=keys)) == [6, 7]  # no query yet: the newest
    assert placed(policy, see(capacity=2, query=query, new_keys=keys[:0])) == [2, 3]
    assert placed(policy, see(capacity=2, query=-query, new_keys=keys[:0], step=1)) == [6, 7]


@pytest.mark.parametrize("page_tokens", [1, 3, 16])
def test_quest_summarises_the_same_in_one_piece_or_in_many(page_tokens):
    keys = np.random.default_rng(6).standard_normal((31, 64)).astype(np.float32)
    whole, pieces = Quest(STREAM, page_tokens), Quest(STREAM, page_tokens)
    expected = whole._summarise(keys)
    for rows in np.split(keys, [0, 1, 7, 20, 20]):
        found = pieces._summarise(rows)
    for mine, other in zip(found, expected, strict=True):
        assert np.array_equal(mine, other)


def test_quest_needs_keys():
    with pytest.raises(ValueError, match="new_keys is None; allowed: key rows"):
        Quest(STREAM).place(see())


def test_the_learned_policy_finds_out_what_predicts():
    """Tokens are accessed in turn by two halves: the last access speaks against the next one."""
    evens, odds = np.arange(0, 40, 2), np.arange(1, 40, 2)
    trace = AccessList(40, [evens, odds] * 60)
    hits = {
        policy.__name__: [
            step.hits for step in replay_accesses(policy(StreamInfo(0, 0, 40)), trace, capacity_tokens=20)
        ]
        for policy in (Learned, EmaAccess)
    }
    assert np.mean(hits["Learned"][-20:]) == 20
    assert np.mean(hits["EmaAccess"][-20:]) == 0


def test_the_learned_policy_starts_as_an_average_and_follows_its_seed():
    rng = np.random.default_rng(8)
    trace = AccessList(60, [np.sort(rng.choice(60, 6, replace=False)) for _ in range(30)])

    def run(policy):
        return np.array([step.placement for step in replay_accesses(policy, trace, 15)])

    streams = [StreamInfo(0, 0, 60, seed) for seed in (1, 1, 2)]
    first, same, other = (run(Learned(stream, sample_tokens=64)) for stream in streams)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    # It starts as the average with decay 0.9, and stays that if it is pulled hard enough.
    stubborn, free = Learned(streams[0], ridge=1e9), Learned(streams[0])
    for policy in (stubborn, free):
        assert policy.weights.tolist() == [0, 0, 1, 0, 0, 0, 0]
        run(policy)
    assert stubborn.weights == pytest.approx([0, 0, 1, 0, 0, 0, 0], abs=1e-6)
    assert np.abs(free.weights - stubborn.weights).max() > 0.1


def test_the_learned_policy_learns_from_what_was_known_before_the_step():
    """A step's accesses against the features from after the step before it: ridge regression by hand."""
    rng = np.random.default_rng(11)
    steps = [np.sort(rng.choice(20, 4, replace=False)) for _ in range(6)]
    policy = Learned(STREAM, forget=0.5, ridge=0.1, sample_tokens=16)
    draws = np.random.default_rng((STREAM.seed, STREAM.layer, STREAM.kv_head))
    prior = policy.weights.copy()
    policy.place(see(sealed=19, tokens=20, capacity=5, step=-1))
    last_use = np.full(20, -np.inf)
    moment, response = np.zeros((7, 7)), np.zeros(7)
    for step, selected in enumerate(steps):
        before = policy._features(np.arange(20), step - 1)
        assert before[5] == pytest.approx(1 / (step - last_use))  # steps since the last use, plus 1
        assert before[6] == pytest.approx(np.log2(20 - np.arange(20)) / 20)
        seen = see(selected=selected, sealed=19, tokens=20, capacity=5, step=step)
        placement = policy.place(seen)
        sample = draws.integers(20, size=16)
        features, accessed = before[:, sample], np.isin(sample, selected)
        moment = 0.5 * moment + features @ features.T / 16
        response = 0.5 * response + features @ accessed / 16
        weights = np.linalg.solve(moment + 0.1 * np.eye(7), response + 0.1 * prior)
        assert policy.weights == pytest.approx(weights, rel=1e-6, abs=1e-9)
        last_use[selected] = step
        expected = weights @ policy._features(np.arange(19), step)
        assert set(np.flatnonzero(placement)) == set(np.argsort(expected)[-5:])


def test_the_literal_line_of_the_article_keeps_the_oldest_new_tokens():
    """`new_tokens[:α·len]` of 8 new tokens with room for 3, and after that with one selected."""
    everything = range(8)
    assert placed(Hill(STREAM), see(hot=everything, step=-1)) == [5, 6, 7]
    literal = HillSeedLiteral(STREAM)
    assert placed(literal, see(hot=everything, step=-1)) == [0, 1, 2]
    assert placed(literal, see(selected=(6,), hot=(0, 1, 2))) == [1, 2, 6]


def test_the_literal_line_misses_where_recent_tokens_are_used():
    """Each step uses the four newest of the 40 tokens there are before the first one."""
    trace = AccessList(40, [np.arange(36, 40)] * 3)
    hits = [
        [step.hits for step in replay_accesses(policy(StreamInfo(0, 0, 40)), trace, 8)]
        for policy in (Hill, HillSeedLiteral)
    ]
    assert hits == [[4, 4, 4], [0, 4, 4]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ema_access", {"decay": 1.0}, "decay is 1.0; allowed: 0 to below 1"),
        ("ema_mass", {"decay": -0.1}, "decay is -0.1; allowed: 0 to below 1"),
        ("h2o", {"grace_fraction": 1.5}, "grace_fraction is 1.5; allowed: 0 to 1"),
        ("h2o", {"decay": 0.0}, "decay is 0.0; allowed: above 0 to 1"),
        ("streaming", {"sink_tokens": -1}, "sink_tokens is -1; allowed: 0 or more"),
        ("streaming", {"window_tokens": -1}, "window_tokens is -1; allowed: 0 or more"),
        ("pam", {"score_weight": 0.0}, "score_weight is 0.0; allowed: above 0 to 1"),
        ("pam", {"interval_steps": 0}, "interval_steps is 0; allowed: 1 or more"),
        ("pam_seed", {"interval_steps": 0}, "interval_steps is 0; allowed: 1 or more"),
        ("pam_seed", {"decay": 1.0}, "decay is 1.0; allowed: 0 to below 1"),
        ("pam_seed", {"hot_threshold": 0.5}, "warm_threshold is 1.0; allowed: 0 to hot_threshold, 0.5"),
        ("quest", {"page_tokens": 0}, "page_tokens is 0; allowed: 1 or more"),
        ("learned", {"forget": 1.0}, "forget is 1.0; allowed: 0 to below 1"),
        ("learned", {"ridge": 0.0}, "ridge is 0.0; allowed: above 0"),
        ("learned", {"ridge": float("nan")}, "ridge is nan; allowed: above 0"),
        ("learned", {"sample_tokens": 0}, "sample_tokens is 0; allowed: 1 or more"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_policy(name, STREAM, options)
