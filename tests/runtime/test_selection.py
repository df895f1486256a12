"""Selection units and head merges: by hand, by brute force, and in whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.attention import attention_weights, softmax
from nearkv.experiments.config import ExperimentConfig, HeadMerge, PolicyConfig, Selection, SelectionUnit
from nearkv.experiments.runner import run_experiment
from nearkv.experiments.scoring import StepScores
from nearkv.experiments.selection import choose, merits
from nearkv.kvcache.budget import share_ceil
from nearkv.trace.format import AttentionTrace, HeadStream

UNITS = tuple(SelectionUnit)


def test_by_hand():
    # Head 0 of the first KV head is sure of token 3, its other head and the second KV head like 0 and 1.
    first = np.array([[0.0, 0.4], [0.1, 0.3], [0.0, 0.2], [0.9, 0.1]])
    second = np.array([[0.6], [0.4], [0.0], [0.0]])
    tokens = {unit: [np.argwhere(m).tolist() for m in choose([first, second], 1, unit)] for unit in UNITS}
    assert tokens[SelectionUnit.QUERY_HEAD] == [[[0, 1], [3, 0]], [[0, 0]]]
    assert tokens[SelectionUnit.KV_HEAD] == [[[3, 0], [3, 1]], [[0, 0]]]
    assert tokens[SelectionUnit.LAYER] == [[[0, 0], [0, 1]], [[0, 0]]]  # .4 + .6 against .9 + .1: the lower


@pytest.mark.parametrize("unit", UNITS)
def test_against_sorting(unit):
    rng = np.random.default_rng(3)
    for _ in range(50):
        tokens, heads, streams = (int(n) for n in rng.integers(1, (40, 5, 4)))
        merit = [rng.integers(0, 6, (tokens, heads)).astype(float) for _ in range(streams)]  # many ties
        count = int(rng.integers(1, tokens + 1))
        for index, mask in enumerate(choose(merit, count, unit)):
            for head in range(heads):
                judged = {
                    SelectionUnit.QUERY_HEAD: merit[index][:, head],
                    SelectionUnit.KV_HEAD: merit[index].sum(axis=1),
                    SelectionUnit.LAYER: sum(one.sum(axis=1) for one in merit),
                }[unit]
                best = sorted(range(tokens), key=lambda token: (-judged[token], token))[:count]
                assert np.flatnonzero(mask[:, head]).tolist() == sorted(best)


def test_raw_scores_of_a_loud_head_drown_the_others():
    # Logits with their own fraction bits: head 0 is flat at 100, head 1 peaks at token 2 with 9 over 0.
    logits = np.array([[100.0, 0.0], [101.0, 0.0], [99.0, 9.0]])
    bits = np.array([4, 10])
    scores = np.rint(np.ldexp(logits, bits)).astype(np.int64)
    scored = StepScores(scores, scores, bits)
    assert merits(scored, HeadMerge.RAW).tolist() == logits.tolist()
    normalised = merits(scored, HeadMerge.NORMALISED)
    assert np.allclose(normalised, softmax(logits * np.log(2)))
    (raw_choice,) = choose([merits(scored, HeadMerge.RAW)], 1, SelectionUnit.KV_HEAD)
    (choice,) = choose([normalised], 1, SelectionUnit.KV_HEAD)
    assert np.flatnonzero(raw_choice[:, 0]).tolist() == [2]
    assert np.flatnonzero(choice[:, 0]).tolist() == [2]
    louder = replace(scored, scores=scores * np.array([8, 1]))
    (raw_choice,) = choose([merits(louder, HeadMerge.RAW)], 1, SelectionUnit.KV_HEAD)
    assert np.flatnonzero(raw_choice[:, 0]).tolist() == [1]


def config_of(**changes) -> ExperimentConfig:
    return ExperimentConfig(trace=Path("a"), **{"policy": PolicyConfig("hill"), **changes})


@pytest.fixture
def layered(trace_of):
    """Two layers of two KV heads."""
    trace = trace_of(streams=4)
    streams = tuple(
        HeadStream(index // 2, index % 2, one.key, one.value, one.query)
        for index, one in enumerate(trace.streams)
    )
    header = replace(trace.header, layers=(0, 1), kv_heads=((0, 1), (0, 1)))
    return AttentionTrace(header, streams)


@pytest.mark.parametrize("unit", UNITS)
def test_a_run_attends_what_its_unit_selects(unit, layered, fake_device):
    # Everything hot: the host's scores are exact, and the true attention can be asked what is attended.
    config = config_of(policy=PolicyConfig("full"), selection_unit=unit, steps=6)
    result = run_experiment(config, layered, fake_device())
    assert [record.stream for record in result.records[:4]] == ["L0.H0", "L0.H1", "L1.H0", "L1.H1"]
    for step in range(6):
        tokens = layered.first_query_position + step + 1
        exact = [attention_weights(s.query[:, step], s.key[:tokens]) for s in layered.streams]
        count = share_ceil(config.select_fraction, tokens)
        masks = [m for layer in (exact[:2], exact[2:]) for m in choose(layer, count, unit)]
        for record, weights, mask in zip(result.records[4 * step : 4 * step + 4], exact, masks, strict=True):
            assert record.attended_tokens == mask.any(axis=1).sum()
            assert record.mass_kept == pytest.approx(np.where(mask, weights, 0).sum() / weights.shape[1])
            assert record.hit_rate == 1


def test_a_finer_unit_keeps_more_attention(layered, fake_device):
    kept = []
    for unit in UNITS:
        config = config_of(policy=PolicyConfig("full"), selection_unit=unit)
        result = run_experiment(config, layered, fake_device())
        kept.append(np.mean([record.mass_kept for record in result.records]))
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("policy", ["hill", "belady", "oracle"])
def test_traffic_is_counted_once_per_stream(unit, policy, layered, fake_device):
    device = fake_device()
    config = config_of(policy=PolicyConfig(policy), selection_unit=unit)
    result = run_experiment(config, layered, device)
    counted = sum(record.from_device_bytes for record in result.records)
    assert counted + result.prefill.from_device_bytes == device.counters.payload_bytes_from_device
    assert sum(r.time_ps for r in result.records) + result.prefill.time_ps == device.now_ps


@pytest.mark.parametrize("unit", UNITS)
def test_the_order_of_streams_asked_for_is_that_of_the_records(unit, layered, fake_device):
    names = ("L1.H1", "L0.H0", "L1.H0")
    config = config_of(streams=names, selection_unit=unit, steps=2)
    result = run_experiment(config, layered, fake_device())
    assert [record.stream for record in result.records] == [*names, *names]
    assert [record.step for record in result.records] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": Selection.HOT_ONLY}, "nothing is scored with selection hot_only"),
        ({"selection_unit": SelectionUnit.QUERY_HEAD}, "a query head that selects by itself merges nothing"),
    ],
)
def test_a_merge_without_effect_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"head_merge is raw; allowed: the default: {message}"):
        config_of(head_merge=HeadMerge.RAW, **changes)
