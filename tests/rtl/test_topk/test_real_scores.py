"""TopK on a real model's scores: the trace in data/, quantised, folded and scored as the device does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.codec.score_merge import normalise_scores
from nearkv.trace.format import read_trace
from nearkv_hdl.spec.attention import LOGIT
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.score_statistics import ScoreStatistics
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.golden.topk_timing import TopKTiming

DESIGN = "smartssd_ku15p"
FIXTURE = Path(__file__).parents[3] / "data" / "smollm2-135m-austen-4096.safetensors"
STEPS = (0, 1, 100, 255)
SELECT_FRACTION = 0.1
N = 65_536
REAL_LIKE_EXTRA_CYCLES = 4096
WIDE_LOGITS = 64  # half width of a window that needs no history, in base-2 logits


@pytest.fixture(scope="module")
def real_scores():
    """[(name, step, scores int64 of all sealed tokens, L of the query)] of every layer and query head."""
    trace = read_trace(FIXTURE)
    design = get_design(DESIGN)
    model = ScorerModel(design)
    result = []
    for stream in trace.streams:
        for step in STEPS:
            sealed = (trace.first_query_position + step + 1) // design.block_tokens * design.block_tokens
            blocks = quantise_keys(stream.key[:sealed])
            folded = fold_query(
                prepare_query(stream.query[:, step]), blocks.headers, KeyFormat.INT8, design.query_code
            )
            scores = model.score(blocks.codes, folded.codes, folded.shift, folded.bias).astype(np.int64)
            for head, fraction_bits in enumerate(folded.score_fraction_bits):
                result.append((f"{stream.name}.{head}", step, scores[:, head], int(fraction_bits)))
    return result


def check(unit, job):
    """One job within the bound for real scores, with the cycles that the golden timing gives."""
    result, cycles = unit.cycles_after_last_beat(job)
    assert cycles == TopKTiming(unit.config).cycles(result)
    assert cycles <= 2 * len(job.scores) // unit.config.lanes + job.k + REAL_LIKE_EXTRA_CYCLES
    return result


def window_around(config, centre, logits, fraction_bits):
    """Window of ± so many base-2 logits."""
    margin = logits << fraction_bits
    return config.window(max(centre - margin, config.score.min), min(centre + margin, config.score.max))


def test_every_head_with_a_wide_window(bench, make_job, real_scores):
    """Without history ± 64 logits hold the threshold of every head, and one pass finds it."""
    unit = bench(DESIGN)
    assert len(real_scores) == 4 * 3 * len(STEPS)
    for name, step, scores, fraction_bits in real_scores:
        k = round(SELECT_FRACTION * len(scores))
        base, shift = window_around(unit.config, 0, WIDE_LOGITS, fraction_bits)
        result = check(unit, make_job(scores, k, window_base=base, window_shift=shift))
        assert result.window_hit, (name, step)
        assert result.memory_passes <= 1, (name, step)


def test_a_narrow_window_is_a_gamble(bench, make_job, real_scores):
    """Around the right threshold it saves the kept scores' pass; a miss costs a pass over the memory."""
    unit = bench(DESIGN)
    timing = TopKTiming(unit.config)
    saved, lost = [], []
    for _, _, scores, fraction_bits in real_scores:
        k = round(SELECT_FRACTION * len(scores))
        threshold = unit.model.select(np.arange(len(scores)), scores, k).threshold
        cycles = {}
        for centre, logits in ((0, WIDE_LOGITS), (threshold, 1), (threshold + (3 << fraction_bits), 1)):
            base, shift = window_around(unit.config, centre, logits, fraction_bits)
            (result,), _ = unit.run([make_job(scores, k, window_base=base, window_shift=shift)])
            cycles[centre, logits] = timing.cycles(result)
        wide, hit, miss = cycles.values()
        assert hit <= wide
        saved.append(wide - hit)
        lost.append(miss - wide)
    assert max(saved) > timing.pass_overhead
    assert max(lost) > timing.pass_overhead


def test_64_ki_scores_drawn_from_real_ones(bench, make_job, real_scores):
    """Longer contexts than the trace: real scores drawn anew and jittered by 1 % of their deviation."""
    unit = bench(DESIGN)
    rng = np.random.default_rng(51)
    for name, _, scores, fraction_bits in real_scores[::3]:
        drawn = rng.choice(scores, N) + np.rint(rng.normal(0, scores.std() / 100, N)).astype(np.int64)
        base, shift = window_around(unit.config, 0, WIDE_LOGITS, fraction_bits)
        result = check(unit, make_job(drawn, N // 10, window_base=base, window_shift=shift))
        assert result.memory_passes == 1, name


def test_merged_heads(bench, make_job, real_scores):
    """Heads normalised by the statistics of their scores, then the highest weight of any head per token."""
    unit = bench(DESIGN)
    groups = {}
    for name, step, scores, fraction_bits in real_scores:
        groups.setdefault((name.rpartition(".")[0], step), []).append((scores, fraction_bits))
    assert len(groups) == 4 * len(STEPS)
    differ = 0
    for heads in groups.values():
        scores = np.stack([scores for scores, _ in heads], axis=1)
        fraction_bits = np.array([bits for _, bits in heads])
        statistics = ScoreStatistics().evaluate(scores, fraction_bits)
        merged = normalise_scores(scores, statistics).max(axis=1)
        k = round(SELECT_FRACTION * len(merged))
        base, shift = window_around(unit.config, 0, WIDE_LOGITS, LOGIT.fraction_bits)
        result = check(unit, make_job(merged, k, window_base=base, window_shift=shift))
        best = np.sort(np.argsort(-merged, kind="stable")[:k])
        np.testing.assert_array_equal(result.tokens, best)
        raw = np.sort(np.argsort(-scores.max(axis=1), kind="stable")[:k])
        differ += not np.array_equal(best, raw)
    assert differ, "normalising changed no selection"
