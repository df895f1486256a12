"""Scheduler, mapping and machine together, on the shipped trace of a real model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.attention import attention_weights, select
from nearkv.pam.attention import Shard, tier_merge
from nearkv.pam.mapping import UNPLACED
from nearkv.pam.runtime import PAM_SHAPES, PamRuntime
from nearkv.pam.scheduler import PamScheduler, Rule, Scheduling
from nearkv.trace.format import read_trace
from nearkv_hdl.spec.attention import Merge
from nearkv_sim.golden.attention import attend_exact
from nearkv_sim.golden.reduction import divide

TRACE = Path(__file__).resolve().parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
SPARSITY = 8
STEPS = 150


@pytest.fixture(scope="module")
def stream():
    (found,) = (stream for stream in read_trace(TRACE).streams if stream.layer == 12)
    return found


@pytest.fixture(scope="module")
def steps(stream):
    """Tokens so far, the selected eighth, its weights: for each step."""
    found = []
    first = len(stream.key) - stream.query.shape[1]
    for step in range(STEPS):
        tokens = first + step + 1
        weights = attention_weights(stream.query[:, step], stream.key[:tokens])
        selected = select(weights, tokens // SPARSITY)
        found.append((tokens, selected, weights[selected].mean(axis=1)))
    return found


@pytest.fixture
def runtime(rates, geometry):
    def make(rule=Rule.SCORES, interval=1, room=(512, 1024, 4096), **options) -> PamRuntime:
        scheduler = PamScheduler(4096, room, Scheduling(migration_interval=interval), rule)
        return PamRuntime(rates, geometry, scheduler, 4096, batch=64, **options)

    return make


def test_the_papers_rule_brings_what_is_attended_into_fast_tiers(runtime, steps):
    """Against the same rule that never evaluates: tokens only fall, where room is short."""
    scheduled, still = runtime(reacts=False), runtime(interval=10_000, reacts=False)
    slow, times, moved = [], [], []
    for each in (scheduled, still):
        records = [each.step(*step) for step in steps]
        slow.append(sum(record.attended_tokens[2] for record in records[10:]))
        times.append(sum(record.run.step_ps for record in records[10:]))
        moved.append(sum(record.moves.count for record in records[10:]))
    assert slow[0] < slow[1] / 2
    assert times[0] < times[1] / 1.5
    # The paper moves 0.7 % of the tokens per step.
    assert 0.001 < moved[0] / sum(tokens for tokens, _, _ in steps[10:]) < 0.02


def test_the_articles_rule_starts_cold_and_learns(runtime, steps):
    """After one evaluation nothing can be above 5.0: 0.1 · 50 accesses is not. Later the hot class fills."""
    each = runtime(Rule.COUNTS, 50, reacts=False)
    shares = [each.step(*step).attended_tokens[0] / len(step[1]) for step in steps]
    assert np.mean(shares[50:60]) < 0.1
    assert np.mean(shares[100:110]) > 0.3


def test_mappings_follow_the_scheduler(runtime, steps):
    each = runtime()
    for step in steps[:10]:
        record = each.step(*step)
        assert sum(record.attended_tokens) == len(step[1])
        assert min(record.imbalance) >= 1
        for which, mapping in enumerate(each.mappings):
            np.testing.assert_array_equal(
                np.flatnonzero(mapping.group != UNPLACED), np.flatnonzero(each.scheduler.tier == which)
            )


def test_moves_of_a_step_are_carried_in_the_next(runtime, steps):
    each = runtime()
    first, second = each.step(*steps[0]), each.step(*steps[1])
    assert first.moves.count > 0
    carried = [task for task in second.run.schedule.tasks if task.name.startswith("migrate")]
    assert len(carried) == len(first.moves.tokens)
    assert not [task for task in first.run.schedule.tasks if task.name.startswith("migrate")]


def test_reacting_to_load_relieves_the_slowest_tier(runtime, steps):
    """The SSD is by far the slowest: with room above it, it hands up what it holds."""
    room = (1500, 3000, 4096)
    reacting, passive = (runtime(interval=10_000, room=room, reacts=reacts) for reacts in (True, False))
    for each in (reacting, passive):
        each.scheduler.step(3840, np.arange(3840), np.linspace(0, 1e-3, 3840))
        each.scheduler.tier[1000:2500] = 2
    ran = [[each.step(*step).run for step in steps[:40]] for each in (reacting, passive)]
    assert ran[0][0].tier_ps == ran[1][0].tier_ps
    assert ran[0][-1].tier_ps[2] < ran[1][-1].tier_ps[2] / 2
    assert ran[0][-1].step_ps < ran[1][-1].step_ps


@pytest.mark.parametrize("kind", list(Merge))
def test_attention_over_the_scheduled_tiers_is_attention(runtime, stream, steps, kind):
    """Both merges on the host against the golden model of the hardware, on real keys and values."""
    each = runtime()
    for step in steps[:5]:
        each.step(*step)
    tokens, selected, _ = steps[5]
    tier = np.zeros(tokens, np.int8)
    tier[: len(each.scheduler.tier)] = each.scheduler.tier
    query = stream.query[:, 5]
    keys, values = stream.key[selected], stream.value[selected]
    partial = attend_exact(query, keys, values, exponent=8)
    golden = divide(partial, 8).astype(np.float64)
    logits = keys.astype(np.float64) @ query.astype(np.float64).T * (np.log2(np.e) / np.sqrt(query.shape[1]))
    for head in range(len(query)):
        shards = [
            Shard(logits[tier[selected] == t, head], values[tier[selected] == t].astype(np.float64))
            for t in range(3)
        ]
        assert sum(len(shard.scores) > 0 for shard in shards) >= 2
        found = tier_merge(kind).attend(shards)
        # FP16 output: half a unit in the last place is 2^-11.
        assert np.linalg.norm(found - golden[head]) <= 2**-11 * np.linalg.norm(golden[head])


def test_shapes_are_three(geometry):
    assert len(PAM_SHAPES) == 3
    with pytest.raises(ValueError, match="shapes are 2; allowed: 3"):
        PamRuntime(None, geometry, None, 1, batch=1, shapes=PAM_SHAPES[:2])
