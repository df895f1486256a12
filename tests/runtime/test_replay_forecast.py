"""The forecast of queries, and the policy that places by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig, Selection
from nearkv.experiments.replay import replay
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import ReplayStream
from nearkv.experiments.runner import run_experiment
from nearkv.policy.base import Observation, Prompt, StreamInfo
from nearkv.policy.ema import EmaMass
from nearkv.policy.forecast import Forecast
from nearkv.policy.query_model import REFIT_STEPS, QueryModel, rotate
from nearkv.trace.format import HeadStream

HEADS, HEAD_DIM, BASE = 2, 16, 10000.0


def test_a_score_of_rotated_rows_depends_on_their_distance_alone():
    query, key = np.random.default_rng(0).standard_normal((2, 1, HEAD_DIM)).astype(np.float32)
    scores = [
        rotate(query, np.array([at + 7]), BASE)[0] @ rotate(key, np.array([at]), BASE)[0]
        for at in (0, 3, 900)
    ]
    assert np.allclose(scores, scores[0], atol=1e-4)
    assert not np.allclose(scores[0], query[0] @ key[0], atol=1e-2)
    back = rotate(rotate(query, np.array([900]), BASE), np.array([-900]), BASE)
    assert np.allclose(back, query, atol=1e-5)


def test_rotation_pairs_the_halves_of_a_row():
    """At position 1 the first pair turns by one radian: (1, 0) becomes (cos 1, sin 1)."""
    row = np.zeros((1, HEAD_DIM), np.float32)
    row[0, 0] = 1
    turned = rotate(row, np.array([1]), BASE)[0]
    assert turned[[0, HEAD_DIM // 2]] == pytest.approx([np.cos(1), np.sin(1)])
    assert np.count_nonzero(turned) == 2


def queries_of(ids, rng, noise=0.0):
    """Before rotation a query is its token's own vector plus half of the query before it."""
    own = rng.standard_normal((ids.max() + 1, HEADS, HEAD_DIM))
    rows = np.zeros((len(ids), HEADS, HEAD_DIM))
    for at, token in enumerate(ids):
        rows[at] = own[token] + 0.5 * rows[at - 1] * (at > 0) + noise * rng.standard_normal((HEADS, HEAD_DIM))
    rotated = rotate(rows.astype(np.float32).transpose(1, 0, 2), np.arange(len(ids)), BASE)
    return rotated.astype(np.float16)


@pytest.mark.parametrize("from_prompt", [True, False])
def test_the_model_learns_what_tokens_ask_for(from_prompt):
    rng = np.random.default_rng(1)
    ids = rng.integers(8, size=480)
    query = queries_of(ids, rng)
    model, seen = QueryModel(BASE), 416
    if from_prompt:
        model.learn_prompt(Prompt(query[:, :seen], ids[:seen]), seen)
    else:
        assert model.predict(0, None) is None
        for at in range(seen):
            model.learn(query[:, at], at, int(ids[at]))
    errors = []
    for at in range(seen, len(ids)):
        found = model.predict(at, int(ids[at]))
        errors.append(((found - query[:, at]) ** 2).sum() / (query[:, at].astype(float) ** 2).sum())
        model.learn(query[:, at], at, int(ids[at]))
    assert np.mean(errors) < 0.06
    assert model.queries == len(ids)


def test_a_prompt_and_its_steps_one_by_one_teach_the_same():
    rng = np.random.default_rng(2)
    ids = rng.integers(5, size=1 + 2 * REFIT_STEPS)
    query = queries_of(ids, rng, noise=0.3)
    at_once, stepwise = QueryModel(BASE), QueryModel(BASE)
    at_once.learn_prompt(Prompt(query, ids), len(ids))
    for at, token in enumerate(ids):
        stepwise.learn(query[:, at], at, int(token))
    for token in (0, 4, None, 99):
        a, b = (model.predict(len(ids), token) for model in (at_once, stepwise))
        assert np.allclose(a, b, atol=1e-3)


def test_queries_of_zero_are_no_reason_to_fail():
    model = QueryModel(BASE)
    model.learn_prompt(Prompt(np.zeros((1, 3, 4), np.float16)), 3)
    assert np.array_equal(model.predict(3, None), np.zeros((1, 4)))


def stream_of(ids, rng) -> ReplayStream:
    """Every token id asks for keys of one direction, so that what is attended follows the fed token."""
    directions = 1.2 * rng.standard_normal((ids.max() + 1, HEAD_DIM))
    keys = directions[rng.permutation(ids)] + 0.1 * rng.standard_normal((len(ids), HEAD_DIM))
    query = directions[ids][None] + 0.1 * rng.standard_normal((HEADS, len(ids), HEAD_DIM))
    at = np.arange(len(ids))
    key = rotate(keys.astype(np.float32), at, 1e30)
    value = np.zeros_like(key, np.float16)
    rotated = rotate(query.astype(np.float32), at, 1e30)
    return ReplayStream(
        (HeadStream(0, 0, key.astype(np.float16), value, rotated.astype(np.float16)),), 0, ids
    )


PROTOCOL = ReplayProtocol(
    hot_fraction=0.2, select_fraction=0.05, sinks=1, recent_tokens=2, warmup_steps=64, scored_steps=64
)


def test_it_foresees_what_only_the_fed_token_tells():
    ids = np.random.default_rng(3).integers(12, size=600)
    stream = stream_of(ids, np.random.default_rng(4))
    info = StreamInfo(0, 0, 600)
    options = {"rope_base": 1e30, "max_churn": 1.0}
    found = replay(
        stream,
        {"average": EmaMass(info), "forecast": Forecast(info, **options)},
        PROTOCOL,
    )
    unknown = ReplayStream(stream.heads, 0)
    without_ids = replay(unknown, {"forecast": Forecast(info, **options)}, PROTOCOL)["forecast"]
    average, forecast = (found[name].hit_rate.mean() for name in ("average", "forecast"))
    assert forecast > average + 0.3
    assert forecast > without_ids.hit_rate.mean() + 0.3


@pytest.mark.parametrize("max_churn", [0.05, 0.3])
def test_it_promotes_no_more_than_its_limit(max_churn):
    ids = np.random.default_rng(3).integers(12, size=600)
    stream = stream_of(ids, np.random.default_rng(4))
    policy = Forecast(StreamInfo(0, 0, 600), rope_base=1e30, max_churn=max_churn)
    found = replay(stream, {"forecast": policy}, PROTOCOL)["forecast"]
    limit = np.floor(max_churn * found.capacity_tokens)
    assert (found.promoted_tokens <= limit).all()
    assert (found.promoted_tokens == limit).any()


def test_without_blend_and_limit_it_is_the_average():
    ids = np.random.default_rng(5).integers(12, size=600)
    stream = stream_of(ids, np.random.default_rng(6))
    info = StreamInfo(0, 0, 600)
    policies = {"a": EmaMass(info, decay=0.8), "b": Forecast(info, blend=0.0, decay=0.8, max_churn=1.0)}
    found = replay(stream, policies, PROTOCOL)
    assert np.array_equal(found["a"].mass_kept, found["b"].mass_kept)


def test_a_little_trained_model_is_trusted_little():
    """A forecast of token 0 against an average of token 1: the share passes one half as queries come."""
    rng = np.random.default_rng(7)
    policy = Forecast(StreamInfo(0, 0, 8), blend=0.8, trust_queries=80, max_churn=1.0)
    chosen = []
    for step in range(2 * REFIT_STEPS + 80):
        seen = Observation(
            step=step,
            tokens=4,
            sealed_tokens=4,
            capacity_tokens=1,
            pinned=np.zeros(4, bool),
            hot=np.zeros(4, bool),
            selected=np.array([1]),
            weight=np.array([1.0]),
            query=rng.standard_normal((1, 4)).astype(np.float16),
            score=lambda _: np.array([1.0, 0.0, 0.0, 0.0]),
        )
        chosen.append(int(np.flatnonzero(policy.place(seen))[0]))
    # b > 1/2 from the step that makes .8 n/(n + 80) exceed it: n = 134, less what the average lacks of 1.
    changes = np.flatnonzero(np.diff(chosen)).tolist()
    assert (chosen[0], chosen[-1], changes) == (1, 0, [132])


def test_on_a_device_every_decision_scores_all_sealed_blocks(trace_of, fake_device):
    device = fake_device()
    config = ExperimentConfig(
        Path("a"), PolicyConfig("forecast"), selection=Selection.HOT_ONLY, hot_fraction=0.5
    )
    run_experiment(config, trace_of(300, REFIT_STEPS + 4, streams=1), device)
    # A model fitted after REFIT_STEPS + 1 steps, the first of which has no query before it.
    assert device.jobs == [[0, 1]] * 4


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("blend", 1.5, "blend is 1.5; allowed: 0 to 1"),
        ("trust_queries", -1, "trust_queries is -1; allowed: 0 or more"),
        ("decay", 1.0, "decay is 1.0; allowed: 0 to below 1"),
        ("max_churn", 0.0, "max_churn is 0.0; allowed: above 0 to 1"),
        ("rope_base", 1.0, "rope_base is 1.0; allowed: above 1"),
    ],
)
def test_options_out_of_range_are_refused(option, value, message):
    with pytest.raises(ValueError, match=message):
        Forecast(StreamInfo(0, 0, 8), **{option: value})


def test_it_needs_someone_who_scores():
    seen = Observation(0, 4, 4, 1, np.zeros(4, bool), np.zeros(4, bool), np.array([1]), np.array([1.0]))
    with pytest.raises(ValueError, match="score is None; allowed: a function"):
        Forecast(StreamInfo(0, 0, 8)).place(seen)
