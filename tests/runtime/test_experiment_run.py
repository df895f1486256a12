"""Runs on an in-memory device: budgets, causality, traffic, degenerate sizes, interrupts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig, ScoreFormat, Selection
from nearkv.experiments.runner import run_experiment
from nearkv.kvcache.budget import share_ceil, share_floor
from nearkv.policy.base import NEVER_USED, Policy
from nearkv.policy.registry import installed_policies
from nearkv_hdl.spec.block_header import StreamIdentity

BLOCK = 128
ROW_BYTES = 2 * 2 * 64  # key and value in FP16
POLICIES = tuple(installed_policies())


def config_of(policy: str = "hill", **changes) -> ExperimentConfig:
    return ExperimentConfig(trace=Path("a"), policy=PolicyConfig(policy), **changes)


@pytest.fixture
def run(trace_of, fake_device):
    def run(config: ExperimentConfig, trace=None, device=None):
        return run_experiment(config, trace or trace_of(), device or fake_device())

    return run


@pytest.fixture
def placements(monkeypatch):
    """Every placement of every installed policy, by (layer, step)."""
    seen = {}
    for policy in installed_policies().values():

        def place(self, view, original=policy.place):
            placed = original(self, view)
            seen[self.stream.layer, view.step] = placed.copy(), view
            return placed

        monkeypatch.setattr(policy, "place", place)
    return seen


def test_blocks_say_whose_they_are(run, trace_of, fake_device):
    trace, device = trace_of(streams=2), fake_device()
    model = replace(trace.header.model, digest="sha256:01234567" + "ff" * 28)
    run(config_of(steps=1), replace(trace, header=replace(trace.header, model=model)), device)
    assert device.identities == {
        one.name: StreamIdentity(model=0x01234567, layer=one.layer, kv_head=one.kv_head)
        for one in trace.streams
    }


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("selection", Selection)
def test_the_budget_is_never_exceeded_and_pins_are_kept(policy, selection, run, trace_of, placements):
    config = config_of(policy, selection=selection, hot_fraction=0.5, recent_fraction=0.3)
    bounded = installed_policies()[policy].bounded
    # 250 … 389 tokens: three tails fill up on the way.
    result = run(config, trace_of(250, 140, streams=1))
    for record in result.records:
        tokens, sealed = record.position + 1, record.sealed_tokens
        assert sealed == record.position // BLOCK * BLOCK  # sealed at the end of the step that filled it
        if bounded:
            assert record.hot_tokens <= max(share_floor(0.5, tokens), tokens - sealed)
        else:
            assert record.hot_tokens == tokens
    assert len(placements) == 141
    for placed, seen in placements.values():
        assert placed[seen.pinned].all()
        assert placed.sum() <= seen.capacity_tokens
        newest = share_floor(0.3, seen.tokens + 1) - (seen.tokens + 1 - seen.sealed_tokens)
        assert newest <= 0 or not bounded or placed[-newest:].all()


@pytest.mark.parametrize("policy", [name for name in POLICIES if not installed_policies()[name].needs_future])
@pytest.mark.parametrize("selection", Selection)
def test_decisions_do_not_depend_on_later_rows(policy, selection, run, trace_of, placements):
    config, trace, cut = config_of(policy, selection=selection), trace_of(), 6
    run(config, trace)
    original = {key: placed for key, (placed, _) in placements.items()}
    other = trace_of(seed=99)
    changed = replace(
        trace,
        streams=tuple(
            replace(
                mine,
                key=np.concatenate([mine.key[: 300 + cut], theirs.key[300 + cut :]]),
                value=np.concatenate([mine.value[: 300 + cut], theirs.value[300 + cut :]]),
                query=np.concatenate([mine.query[:, :cut], theirs.query[:, cut:]], axis=1),
            )
            for mine, theirs in zip(trace.streams, other.streams, strict=True)
        ),
    )
    placements.clear()
    run(config, changed)
    for (layer, step), placed in original.items():
        if step < cut:
            assert (placements[layer, step][0] == placed).all()


def test_only_the_bounds_see_the_future(run, placements):
    for name, policy in installed_policies().items():
        placements.clear()
        run(config_of(name))
        for (_, step), (_, seen) in placements.items():
            assert (seen.next_use is not None) == policy.needs_future
            assert (seen.next_weight is not None) == (policy.needs_future and step < 11)
    assert {name for name, policy in installed_policies().items() if policy.needs_future} == {
        "belady",
        "oracle",
    }


def test_only_who_asks_for_keys_gets_them_each_once(run, trace_of, placements):
    trace = trace_of(250, 140, streams=1)
    for name, policy in installed_policies().items():
        placements.clear()
        run(config_of(name), trace)
        views = [seen for _, seen in placements.values()]
        assert all((seen.new_keys is not None) == policy.needs_keys for seen in views)
        sees_query = policy.needs_keys or policy.needs_scoring
        assert all((seen.query is not None) == (sees_query and seen.step >= 0) for seen in views)
        assert all((seen.score is not None) == policy.needs_scoring for seen in views)
        if policy.needs_keys:
            keys = np.concatenate([seen.new_keys for seen in views])
            assert np.array_equal(keys, trace.streams[0].key[: views[-1].sealed_tokens])
            assert all(np.array_equal(s.query, trace.streams[0].query[:, s.step]) for s in views[1:])


def test_the_next_use_is_that_of_exact_attention(run, trace_of, placements):
    trace = trace_of(300, 12, streams=1)
    run(config_of("belady"), trace)
    stream, used = trace.streams[0], []
    for step in range(12):
        logits = stream.key[: 301 + step].astype(float) @ stream.query[:, step].astype(float).T / 8
        weights = (np.exp(logits) / np.exp(logits).sum(axis=0)).sum(axis=1)
        used.append(set(np.argsort(-weights)[: share_ceil(0.1, 301 + step)].tolist()))
    for _, seen in placements.values():
        for token in range(seen.sealed_tokens):
            later = [step for step in range(seen.step + 1, 12) if token in used[step]]
            assert seen.next_use[token] == (later[0] if later else NEVER_USED)


def test_the_oracle_hits_more_than_any_other(run, trace_of):
    trace = trace_of(1000, 12)
    hits = {
        name: np.mean([r.hit_rate for r in run(config_of(name, recent_fraction=0.02), trace).records[2:]])
        for name in ("recency", "hill", "oracle")
    }
    assert hits["recency"] < hits["hill"] < hits["oracle"]


@pytest.mark.parametrize("uniform", [False, True])
def test_the_device_scores_the_blocks_that_hold_a_cold_token(uniform, run, trace_of, fake_device):
    device = fake_device()
    # The newest 60 % are hot: of three sealed blocks the last one has no cold token.
    config = config_of("recency", hot_fraction=0.6, sinks=0, uniform_score=uniform)
    result = run(config, trace_of(400, 3, streams=1), device)
    assert device.jobs == [[0, 1, 2] if uniform else [0, 1]] * 3
    assert [record.scored_blocks for record in result.records] == [3 if uniform else 2] * 3


def test_uniform_scores_make_the_selection_independent_of_placement(run, trace_of):
    trace = trace_of(600, 10)

    def crcs(uniform: bool) -> set[tuple[int, ...]]:
        return {
            tuple(
                r.selection_crc32
                for r in run(config_of(p, uniform_score=uniform, format=ScoreFormat.INT4), trace).records
            )
            for p in POLICIES
        }

    assert len(crcs(uniform=True)) == 1
    assert len(crcs(uniform=False)) > 1


def test_bytes_and_times_are_those_of_the_rows_that_moved(run, trace_of, fake_device):
    device = fake_device()
    result = run(config_of("oracle"), trace_of(500, 10, streams=1), device)
    read = sum(r.fetched_tokens + r.promotion_read_tokens for r in result.records)
    assert read == sum(map(len, device.fetches))
    for record in result.records:
        scores = record.scored_blocks * BLOCK * 3 * 4
        rows = (record.fetched_tokens + record.promotion_read_tokens) * ROW_BYTES
        assert record.from_device_bytes == scores + rows
        assert record.fetch_time_ps == record.fetched_tokens * ROW_BYTES * 1000
        assert record.promote_time_ps == record.promotion_read_tokens * ROW_BYTES * 1000
        assert record.time_ps == (record.from_device_bytes + record.to_device_bytes) * 1000


def test_a_block_is_written_when_it_is_full(run, trace_of):
    result = run(config_of(), trace_of(508, 8, streams=1))
    assert [r.position for r in result.records if r.seal_time_ps] == [511]
    assert [r.sealed_tokens for r in result.records] == [384] * 4 + [512] * 4
    assert result.prefill.sealed_tokens == 384
    assert result.prefill.to_device_bytes == 384 * ROW_BYTES


def test_hot_only_attends_the_pool_and_asks_nothing_of_the_device(run, trace_of, fake_device):
    device = fake_device()
    result = run(config_of("recency", selection=Selection.HOT_ONLY), trace_of(600, 8), device)
    assert device.jobs == []
    assert device.fetches == []
    for record in result.records:
        assert record.attended_tokens == record.hot_tokens
        assert record.mass_kept < 1
        assert record.output_error > 0


def test_with_everything_hot_and_selected_the_output_is_full_attention(run):
    for selection in Selection:
        result = run(config_of("full", select_fraction=1.0, selection=selection))
        for record in result.records:
            assert record.output_error < 1e-12
            assert record.mass_kept == pytest.approx(1)
            assert record.hit_rate == 1


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("hot", "recent"), [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize(("first", "steps"), [(0, 3), (1, 2), (126, 4), (128, 2)])
@pytest.mark.parametrize("selection", Selection)
def test_degenerate_fractions_and_tiny_contexts(policy, hot, recent, first, steps, selection, run, trace_of):
    config = config_of(policy, hot_fraction=hot, recent_fraction=recent, selection=selection, sinks=500)
    result = run(config, trace_of(first, steps, streams=1))
    assert result.complete
    for record in result.records:
        wanted = share_ceil(0.1, record.position + 1)
        hot_only = selection is Selection.HOT_ONLY
        assert record.selected_tokens == (min(wanted, record.hot_tokens) if hot_only else wanted)
        assert 0 <= record.hit_rate <= 1
        assert 0 < record.mass_kept <= 1 + 1e-12
        if hot == 1.0:
            assert record.hot_tokens == record.position + 1


def test_fewer_steps_are_the_first_of_more(run):
    many, few = run(config_of("oracle")), run(config_of("oracle", steps=5))
    assert few.records == many.records[: len(few.records)]
    assert few.complete


def test_a_subset_of_streams_gives_the_same_records(run):
    both, one = run(config_of()), run(config_of(streams=("L1.H0",)))
    assert list(one.records) == both.of_stream("L1.H0")


def test_an_interrupt_leaves_the_finished_steps(trace_of, fake_device):
    def interrupt(done: int, planned: int) -> None:
        assert planned == 12
        if done == 4:
            raise KeyboardInterrupt

    trace = trace_of()
    partial = run_experiment(config_of(), trace, fake_device(), interrupt)
    whole = run_experiment(config_of(), trace, fake_device())
    assert (partial.steps, partial.complete, whole.complete) == (4, False, True)
    assert partial.records == whole.records[:8]


def test_recall_judges_the_format_wherever_tokens_are(run, trace_of):
    """Hot tokens are selected by the host's exact scores, but the device scored their blocks, too."""
    trace = trace_of(streams=1)
    mixed, uniform = (
        run(config_of(format=ScoreFormat.INT4, uniform_score=value), trace) for value in (False, True)
    )
    assert [record.recall for record in mixed.records] == [record.recall for record in uniform.records]
    assert any(
        a.selection_crc32 != b.selection_crc32 for a, b in zip(mixed.records, uniform.records, strict=True)
    )


def test_mass_is_that_of_the_selected_tokens_mean_over_the_heads(run, trace_of):
    trace = trace_of(streams=1)
    stream, first = trace.streams[0], trace.first_query_position
    for record in run(config_of("full"), trace).records:
        keys = stream.key[: first + record.step + 1].astype(float)
        logits = keys @ stream.query[:, record.step].astype(float).T / np.sqrt(trace.head_dim)
        weights = np.exp(logits) / np.exp(logits).sum(axis=0)
        best = np.sort(weights.sum(axis=1))[-record.selected_tokens :]
        assert record.mass_kept == pytest.approx(best.sum() / trace.query_group, rel=1e-9)


class Disobedient(Policy):
    """Keeps everything although it is bounded."""

    def place(self, seen):
        return np.ones(seen.sealed_tokens, bool)


def test_a_policy_that_breaks_the_rules_is_named(run):
    sys.modules["disobedient"] = sys.modules[__name__]
    with pytest.raises(ValueError, match="policy disobedient:Disobedient: placement holds 256 tokens"):
        run(config_of("disobedient:Disobedient"))
    del sys.modules["disobedient"]


class Failing(Policy):
    """Has an error of its own."""

    def place(self, seen):
        raise SystemExit(seen.step)


def test_whatever_a_policy_raises_names_it(run):
    sys.modules["failing"] = sys.modules[__name__]
    with pytest.raises(ValueError, match=r"policy failing:Failing: place\(\) raised SystemExit: -1"):
        run(config_of("failing:Failing"))
    del sys.modules["failing"]


class Dice(Policy):
    """Draws."""

    def place(self, seen):
        return seen.fill(self.rng.random(seen.sealed_tokens))


def test_the_seed_decides_what_a_random_policy_draws(run):
    sys.modules["dice"] = sys.modules[__name__]
    a, b, c = (run(config_of("dice:Dice", seed=seed)).records for seed in (1, 1, 2))
    del sys.modules["dice"]
    assert a == b
    assert a != c
