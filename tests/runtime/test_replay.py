"""Replay of a trace's attention: against a step-by-step transcription, by hand, and on the trace in data/."""

from __future__ import annotations

from dataclasses import replace as replaced
from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.attention import attention_weights
from nearkv.experiments.replay import replay
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import ReplayStream, kv_head_streams, layer_streams
from nearkv.policy.base import Policy, StreamInfo
from nearkv.policy.registry import build_policy, installed_policies
from nearkv.trace.format import HeadStream, read_trace

DATA = Path(__file__).resolve().parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
SMALL = ReplayProtocol(
    hot_fraction=0.1, select_fraction=0.1, sinks=2, recent_tokens=3, warmup_steps=5, scored_steps=7
)


def policies(*names: str, tokens: int = 8192) -> dict[str, Policy]:
    return {name: build_policy(name, StreamInfo(0, 0, tokens), {}) for name in names}


def attending(*targets: list[int], tokens: int, first: int) -> ReplayStream:
    """Step i attends the tokens targets[i] alike and nothing else: keys are unit vectors."""
    key = np.eye(tokens, dtype=np.float16)
    query = np.zeros((1, len(targets), tokens), np.float16)
    for step, attended in enumerate(targets):
        query[0, step, attended] = 400
    return ReplayStream((HeadStream(0, 0, key, key, query),), first)


def test_by_hand():
    """Ten tokens, the last three of them steps; 3 hot (the step's own, token 0, one more), 2 accessed."""
    stream = attending([2, 3], [2, 4], [2, 5], tokens=10, first=7)
    protocol = ReplayProtocol(0.3, 0.2, sinks=1, recent_tokens=1, warmup_steps=0, scored_steps=3)
    with pytest.raises(
        ValueError, match=r"hot_fraction 0\.1 makes 0 of 8 tokens hot; allowed: at least the 2"
    ):
        replay(stream, policies("lru"), replaced(protocol, hot_fraction=0.1))
    found = replay(stream, policies("ema_access", "oracle", tokens=10), protocol)
    # Contexts of 8, 9, 10 tokens: 2, 2, 3 are hot, of which the policy places 1, 1, 2; token 0 is pinned.
    oracle = found["oracle"]
    assert oracle.capacity_tokens.tolist() == [1, 1, 2]
    assert oracle.mass_kept == pytest.approx([0, 0, 0.5], abs=1e-3)
    assert oracle.hit_rate.tolist() == [0, 0, 0.5]
    assert oracle.fetched_tokens.tolist() == [2, 2, 1]
    # Token 5 (ties go to the newer) for the last step; nobody has fetched it.
    assert oracle.promoted_tokens[1:].tolist() == [0, 1]
    assert oracle.promotion_read_tokens[1:].tolist() == [0, 1]
    assert oracle.churn == pytest.approx((0 + 0 + 1 / 2) / 3)
    assert oracle.traffic_cut == pytest.approx(1 - (5 + 1) / 6)
    # The average promotes token 2, which the step before fetched: no read of its own.
    average = found["ema_access"]
    assert average.mass_kept == pytest.approx([0, 0, 0.5], abs=1e-3)
    assert (average.promoted_tokens[1:].tolist(), average.promotion_read_tokens[1:].tolist()) == (
        [0, 1],
        [0, 0],
    )


def transcribed(stream: ReplayStream, protocol: ReplayProtocol, decay: float) -> list[float]:
    """Mass that the average keeps, one step and one token at a time, in float64."""
    (head,) = stream.heads
    average, kept, hot = np.zeros(stream.context_tokens), [], set()
    for step in range(stream.steps - protocol.steps, stream.steps):
        tokens = stream.first_query_position + step + 1
        weight = attention_weights(head.query[:, step], head.key[:tokens]).mean(axis=1)
        if step >= stream.steps - protocol.scored_steps:
            kept.append(sum(weight[token] for token in hot | {tokens - 1}))
        accessed = np.argsort(-weight)[: -(-tokens // 10)]
        average *= decay
        average[accessed] += (1 - decay) * weight[accessed]
        pins = set(range(protocol.sinks)) | set(range(tokens + 1 - protocol.recent_tokens, tokens))
        ranked = sorted(set(range(tokens)) - pins, key=lambda token: (-average[token], -token))
        hot = pins | set(ranked[: (tokens + 1) // 10 - 1 - len(pins)])
    return kept


def test_against_a_transcription(trace_of):
    for stream in kv_head_streams(trace_of(300, 14, streams=2)):
        found = replay(stream, policies("ema_mass"), SMALL)["ema_mass"]
        assert found.mass_kept == pytest.approx(transcribed(stream, SMALL, 0.9), abs=1e-5)


def test_weights_are_those_of_exact_attention(trace_of):
    trace = trace_of(50, 9, streams=1)
    (stream,) = kv_head_streams(trace)
    rows = stream.weights(3, 4)
    assert rows.shape == (4, 59)
    for row, step in zip(rows, range(3, 7), strict=True):
        tokens = 50 + step + 1
        exact = attention_weights(trace.streams[0].query[:, step], trace.streams[0].key[:tokens])
        assert row[:tokens] == pytest.approx(exact.mean(axis=1), abs=1e-6)
        assert not row[tokens:].any()
    query = trace.streams[0].query[:, 5].astype(np.float32)
    assert stream.score(query, 56) == pytest.approx(rows[2, :56], abs=1e-6)


def test_a_layer_attends_as_the_mean_of_its_heads(trace_of):
    first, second = kv_head_streams(trace_of(50, 9, streams=2))
    layer = ReplayStream(first.heads + second.heads, 50)
    assert layer.weights(0, 9) == pytest.approx((first.weights(0, 9) + second.weights(0, 9)) / 2)
    protocol = replaced(SMALL, warmup_steps=0, hot_fraction=0.2)
    assert replay(layer, policies("lru"), protocol)["lru"].accessed_tokens.tolist() == [6] * 7
    for name in ("quest", "forecast"):
        with pytest.raises(ValueError, match="needs keys or scores, stream L0 has 2 KV heads"):
            replay(layer, policies(name), protocol)
    with pytest.raises(ValueError, match="stream is L0 of 2 KV heads; allowed: one"):
        layer.score(np.zeros((1, 64), np.float32), 5)


def test_streams_of_a_trace_by_head_and_by_layer():
    trace = read_trace(DATA)
    assert [stream.name for stream in kv_head_streams(trace)] == ["L2.H0", "L12.H0", "L20.H0", "L29.H0"]
    assert [len(stream.heads) for stream in layer_streams(trace)] == [1, 1, 1, 1]
    with pytest.raises(ValueError, match=r"token_ids has shape \(7,\); allowed: \(4096,\)"):
        next(kv_head_streams(trace, np.zeros(7, np.int64)))


@pytest.mark.parametrize("name", [n for n, p in installed_policies().items() if not p.needs_future])
def test_what_comes_later_changes_nothing(name, trace_of):
    """Rows and ids after the cut are those of another trace: the masses before it stay the same."""
    protocol, ids = replaced(SMALL, scored_steps=12, warmup_steps=0), np.arange(320) % 7
    mine, theirs = (next(kv_head_streams(trace_of(300, 20, streams=1, seed=seed), ids)) for seed in (1, 2))
    cut = 14  # of the stream's 20 steps: 6 of the 12 that are replayed
    one, other = mine.heads[0], theirs.heads[0]
    mixed = replaced(
        one,
        key=np.concatenate([one.key[: 300 + cut], other.key[300 + cut :]]),
        query=np.concatenate([one.query[:, :cut], other.query[:, cut:]], axis=1),
    )
    # The step that is cut off has its token's id known before.
    changed = ReplayStream((mixed,), 300, np.concatenate([ids[: 301 + cut], ids[301 + cut :][::-1]]))
    before, after = (replay(stream, policies(name), protocol)[name].mass_kept for stream in (mine, changed))
    assert np.array_equal(before[:6], after[:6])
    assert not np.array_equal(before[6:], after[6:])


def test_policies_on_the_trace_in_data():
    """Order of the policies on real attention, without token ids and with a short history."""
    protocol = ReplayProtocol(warmup_steps=64, scored_steps=64)
    kept = {name: [] for name in ("recency", "ema_mass", "forecast", "oracle")}
    for stream in kv_head_streams(read_trace(DATA)):
        for name, result in replay(stream, policies(*kept), protocol).items():
            kept[name].append(result.mass_kept.mean())
            assert 0 < result.hit_rate.mean() <= 1
            assert result.churn <= (0.05 if name == "forecast" else 1)
    recency, average, forecast, oracle = (np.array(values) for values in kept.values())
    assert (recency < average).all()
    assert (np.maximum(average, forecast) < oracle).all()
    assert (forecast > recency).all()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hot_fraction", 0.0, "hot_fraction is 0.0; allowed: above 0 to 1"),
        ("select_fraction", 1.5, "select_fraction is 1.5; allowed: above 0 to 1"),
        ("sinks", -1, "sinks is -1; allowed: 0 or more"),
        ("recent_tokens", 0, "recent_tokens is 0; allowed: 1 or more"),
        ("warmup_steps", -1, "warmup_steps is -1; allowed: 0 or more"),
        ("scored_steps", 0, "scored_steps is 0; allowed: 1 or more"),
    ],
)
def test_a_protocol_out_of_range_is_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        ReplayProtocol(**{field: value})


def test_a_short_stream_is_refused(trace_of):
    (stream,) = kv_head_streams(trace_of(300, 11, streams=1))
    with pytest.raises(
        ValueError, match=r"L0.H0 has 11 steps; allowed: 12 or more, 5 to warm up and 7 scored"
    ):
        replay(stream, policies("lru"), SMALL)
