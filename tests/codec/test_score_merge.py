"""Statistics of heads: merging tiles, logarithms, normalised scores, and what they are worth on real keys."""

from __future__ import annotations

from pathlib import Path

import mpmath
import numpy as np
import pytest

from nearkv.codec import query as codec_query
from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.codec.score_merge import (
    HeadStatistics,
    empty_statistics,
    log2_excess,
    log2_fixed,
    merge_statistics,
    normalise_scores,
)
from nearkv.trace.format import read_trace
from nearkv_hdl.spec import score_statistics as spec
from nearkv_hdl.spec.attention import LOGIT
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.score_statistics import ScoreStatistics
from nearkv_sim.golden.scorer import ScorerModel

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
FIELDS = ("maximum", "upper", "lower")
ERROR = 0.0035  # of a normalised score, stated in normalise_scores; the tokens here drop nothing


def statistics(fraction_bits, maximum, upper, lower) -> HeadStatistics:
    return HeadStatistics(
        np.array(fraction_bits), np.array(maximum), np.array(upper, np.uint64), np.array(lower, np.uint64)
    )


def values(found: HeadStatistics) -> list:
    return [getattr(found, field).tolist() for field in FIELDS]


def test_merging_by_hand():
    """Groups of 32 binades at L = 0: 70 lies in group 2, 40 in group 1, 5 in group 0."""
    tiles = [
        statistics([0], [top], [value], [rest]) for top, value, rest in ((70, 9, 4), (40, 7, 2), (5, 3, 1))
    ]
    assert values(merge_statistics(tiles)) == [[70], [9], [4 + 7]]
    assert values(merge_statistics(tiles[1:])) == [[40], [7], [2 + 3]]
    assert values(merge_statistics([tiles[0], tiles[2]])) == [[70], [9], [4]]
    assert values(merge_statistics([tiles[0], tiles[0]])) == [[70], [18], [8]]


def test_an_empty_tile_changes_nothing():
    empty = empty_statistics(np.array([0, 20]))
    assert values(merge_statistics([empty, empty])) == values(empty)
    tile = statistics([0, 20], [-3, 1 << 20], [1, 2], [3, 4])
    for tiles in ([tile, empty], [empty, tile], [tile]):
        assert values(merge_statistics(tiles)) == values(tile)
    assert log2_excess(empty).tolist() == [0, 0]


def test_merging_is_associative():
    rng = np.random.default_rng(4)
    model, bits = ScoreStatistics(), np.array([20, 4, 0, -3])
    tiles = [model.evaluate(rng.integers(-100, 100, (9, 4)) << np.maximum(bits, 0), bits) for _ in range(6)]
    for split in range(1, 6):
        halves = [merge_statistics(tiles[:split]), merge_statistics(tiles[split:])]
        assert values(merge_statistics(halves)) == values(merge_statistics(tiles))


def test_bad_statistics_are_refused():
    with pytest.raises(ValueError, match="0 tiles; allowed: from 1"):
        merge_statistics([])
    with pytest.raises(ValueError, match=r"fraction_bits are \[1\] and \[2\]; allowed: the same"):
        merge_statistics([empty_statistics(np.array([1])), empty_statistics(np.array([2]))])
    full = statistics([0], [1], [1 << 63], [0])
    with pytest.raises(ValueError, match=rf"a sum is {1 << 64}; allowed: below 2\^64"):
        merge_statistics([full, full])
    with pytest.raises(ValueError, match=r"shapes \[\(1,\), \(2,\)\]; allowed: \[heads\]"):
        statistics([0, 0], [1], [1], [1])
    with pytest.raises(ValueError, match="fraction_bits is 25; allowed: -24 to 24"):
        empty_statistics(np.array([25]))


def test_both_names_of_the_range_of_l_agree():
    assert codec_query.MIN_SCORE_FRACTION_BITS == spec.MIN_SCORE_FRACTION_BITS
    assert codec_query.MAX_SCORE_FRACTION_BITS == spec.MAX_SCORE_FRACTION_BITS


def test_logarithms():
    assert [log2_fixed(1 << n) for n in (0, 1, 40, 96)] == [n << 16 for n in (0, 1, 40, 96)]
    rng = np.random.default_rng(1)
    with mpmath.workprec(200):
        for _ in range(300):
            value = int(rng.integers(1, 1 << 62)) << int(rng.integers(0, 40))
            assert log2_fixed(value) == int(mpmath.floor(mpmath.log(value, 2) * 65536))
    with pytest.raises(ValueError, match="value is 0; allowed: from 1"):
        log2_fixed(0)


@pytest.mark.parametrize("bits", range(-24, 25))
def test_normalised_scores_are_log2_of_the_softmax(bits):
    rng = np.random.default_rng(bits + 100)
    scores = np.floor(rng.normal(0, 6, (300, 2)) * 2.0**bits).clip(-(2**31), 2**31 - 1).astype(np.int64)
    scores[0] = -(1 << 31)
    found = normalise_scores(scores, ScoreStatistics().evaluate(scores, [bits, bits]))
    below = np.ldexp((scores - scores.max(axis=0)).astype(np.float64), -bits)
    expected = below - np.log2(np.exp2(below).sum(axis=0))
    expected = expected.clip(LOGIT.min / 65536, LOGIT.max / 65536)
    assert np.abs(found / 65536 - expected).max() <= ERROR + 3 / 65536
    assert (np.diff(found[np.argsort(scores[:, 0], kind="stable"), 0]) >= 0).all()


def test_scores_that_do_not_belong_are_refused():
    found = ScoreStatistics().evaluate([[5], [3]], [0])
    with pytest.raises(ValueError, match="a score lies 1 above its head's maximum"):
        normalise_scores(np.array([[6]]), found)
    with pytest.raises(ValueError, match=r"scores are \[1, 2\] with 1 heads"):
        normalise_scores(np.array([[1, 1]]), found)


def lost_masses(fraction: float) -> dict[str, np.ndarray]:
    """Attention mass lost against the best choice there is, by rule of merging, [streams · steps].

    Real keys and queries; every rule takes the same number of tokens for all heads, the best choice those of
    the largest true weight summed over the heads.
    """
    design, model = get_design("smartssd_ku15p"), ScoreStatistics()
    lost: dict[str, list[float]] = {}
    for stream in read_trace(FIXTURE).streams:
        keys = stream.key[:3840]
        count = int(fraction * len(keys))
        blocks = quantise_keys(keys)
        for step in range(0, 256, 8):
            query = stream.query[:, step]
            folded = fold_query(prepare_query(query), blocks.headers, KeyFormat.INT8, design.query_code)
            scores = ScorerModel(design).score(blocks.codes, folded.codes, folded.shift, folded.bias)
            bits = folded.score_fraction_bits
            normalised = normalise_scores(scores.astype(np.int64), model.evaluate(scores, bits))
            raw = np.ldexp(scores.astype(np.float64), -bits)
            logit = keys.astype(np.float64) @ query.astype(np.float64).T / np.sqrt(keys.shape[1])
            truth = np.exp(logit - logit.max(axis=0))
            truth = (truth / truth.sum(axis=0)).mean(axis=1)
            best = np.sort(truth)[-count:].sum()
            rules = {
                "raw mean": raw.mean(axis=1),
                "raw max": raw.max(axis=1),
                "normalised max": normalised.max(axis=1),
                "normalised sum": np.exp2(normalised / 65536).sum(axis=1),
            }
            for rule, merit in rules.items():
                chosen = np.argsort(-merit, kind="stable")[:count]
                lost.setdefault(rule, []).append(best - truth[chosen].sum())
    return {rule: np.array(found) for rule, found in lost.items()}


def test_heads_merged_over_normalised_scores_keep_more_attention():
    """At 10 % of the tokens: sum of weights against mean of scores, largest against largest."""
    lost = lost_masses(0.10)
    assert lost["normalised sum"].mean() < lost["raw mean"].mean() / 50
    assert lost["normalised max"].mean() < lost["raw max"].mean() / 10
    assert (lost["normalised sum"] < lost["raw mean"]).all()
    assert (lost["normalised max"] < lost["raw max"]).mean() >= 0.9
