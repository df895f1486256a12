"""What TopK refuses and clips, and what its configuration and its golden model refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.spec.topk_config import TopKConfig

GOOD = TopKConfig(capacity=64, lanes=4, score_bits=8, digit_bits=4, scan_columns=2, candidate_rows=4)
AFTER = np.array([4, 9, 1])  # a job that must work after each of these


def test_k_beyond_n_selects_all_and_says_so(bench, make_job):
    unit = bench("four_lanes")
    for k in (6, 7, 65, 2**32 - 1):
        results, _ = unit.run([make_job(np.arange(5), k), make_job(AFTER, 2)])
        assert [result.clipped for result in results] == [True, False]
        assert [result.count for result in results] == [5, 2]


@pytest.mark.parametrize("extra", [1, 2, 50])
def test_more_scores_than_capacity_are_refused_whole(bench, make_job, extra):
    unit = bench("four_lanes")
    results, _ = unit.run([make_job(np.zeros(64 + extra), 3), make_job(AFTER, 2)])
    assert [result.overrun for result in results] == [True, False]
    assert [result.count for result in results] == [0, 2]


def test_exactly_the_capacity_is_taken(bench, make_job):
    (result,), _ = bench("four_lanes").run([make_job(np.arange(64), 64, holes=(0, 64, 64))])
    assert (result.overrun, result.count) == (False, 64)


@pytest.mark.parametrize("tokens", [[0, 1, 1, 4], [0, 5, 4, 6], [7, 6, 8, 9], [1, 2, 3, 3]])
def test_tokens_that_do_not_ascend_are_refused_whole(bench, make_job, tokens):
    unit = bench("four_lanes")
    results, _ = unit.run([make_job(np.arange(4), 2, tokens=np.array(tokens)), make_job(AFTER, 2)])
    assert [result.unordered for result in results] == [True, False]
    assert [result.count for result in results] == [0, 2]


@pytest.mark.parametrize(
    ("tokens", "refused"),
    [
        ([*range(8), *range(40, 48)], False),  # two runs of eight
        ([*range(5, 13), 13], False),  # runs need no alignment
        ([*range(7), 9, *range(10, 18)], True),  # a hole inside the first run
        ([*range(8), *range(7, 15)], True),  # the second run overlaps the first
    ],
)
def test_token_runs(bench, make_job, tokens, refused):
    unit = bench("runs_of_8")
    (result,), _ = unit.run([make_job(np.arange(len(tokens)), 4, tokens=np.array(tokens))])
    assert result.unordered == refused


@pytest.mark.parametrize("limit", ["min", "max"])
def test_extreme_scores(bench, make_job, limit):
    """INT_MIN and INT_MAX are scores like any other, with windows at both ends of the range."""
    unit = bench("smartssd_ku15p")
    low, high = unit.config.score.min, unit.config.score.max
    assert (low, high) == (-(2**31), 2**31 - 1)
    value = getattr(unit.config.score, limit)
    scores = np.array([value, low, 0, high, value, -1, value])
    jobs = [
        make_job(scores, k, window_base=base, window_shift=shift)
        for k in range(9)
        for base in (low, -1, high)
        for shift in (0, 21, 31)
    ]
    unit.run(jobs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": 3}, "lanes is 3; allowed: a power of two from 1 to 8"),
        ({"lanes": 16}, "lanes is 16; allowed"),
        ({"capacity": 66}, "capacity is 66; allowed: a multiple of 4 from 8, with 4 lanes and token_run 1"),
        ({"capacity": 4}, "capacity is 4; allowed"),
        ({"token_run": 3}, "token_run is 3; allowed: a power of two"),
        ({"token_run": 64}, "capacity is 64; allowed: a multiple of 64 from 128"),
        ({"digit_bits": 0}, "digit_bits is 0; allowed: from 1"),
        ({"score_bits": 13}, "score_bits is 13; allowed: 5 to 12 with digit_bits 4"),
        ({"score_bits": 4}, "score_bits is 4; allowed"),
        ({"scan_columns": 16}, "scan_columns is 16; allowed: a power of two below 16"),
        ({"scan_columns": 3}, "scan_columns is 3; allowed"),
        ({"candidate_rows": 1}, "candidate_rows is 1; allowed: 2 to 16, the scores of a lane"),
        ({"candidate_rows": 17}, "candidate_rows is 17; allowed"),
        ({"token_bits": 33}, "token_bits is 33; allowed: 1 to 32"),
        ({"memory_style": "flash"}, "memory_style is 'flash'; allowed: auto, block, ultra, distributed"),
    ],
)
def test_configuration_errors(change, message):
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **change)


def test_window():
    config = TopKConfig(capacity=64, lanes=1, candidate_rows=64)
    assert config.window(-5, -5) == (-6, 0)
    assert config.window(0, 2045) == (-1, 0)  # 2046 inner buckets
    assert config.window(0, 2046) == (-2, 1)
    assert config.window(-(2**31), 2**31 - 1) == (-(2**31), 21)
    with pytest.raises(ValueError, match="window is 3 to 2; allowed: ascending"):
        config.window(3, 2)
    for low, high in ((-100, 5000), (7, 7), (-(2**30), 2**30)):
        base, shift = config.window(low, high)
        digits = [(value - base) >> shift for value in (low, high)]
        assert 0 < digits[0] <= digits[1] < config.buckets - 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": -1}, "k is -1 to -1; allowed: 0 to 4294967295"),
        ({"scores": np.array([128])}, "score is 128 to 128; allowed: -128 to 127"),
        ({"tokens": np.array([-1])}, "token is -1 to -1; allowed: 0 to"),
        ({"tokens": np.array([1, 2])}, r"tokens \(2,\) and scores \(1,\); allowed: both \[N\]"),
        ({"window_base": 200}, "window_base is 200 to 200; allowed: -128 to 127"),
        ({"window_shift": 9}, "window_shift is 9 to 9; allowed: 0 to 7"),
    ],
)
def test_golden_refusals(bench, arguments, message):
    given = {"tokens": np.array([0]), "scores": np.array([3]), "k": 1, **arguments}
    with pytest.raises(ValueError, match=message):
        bench("four_lanes").model.select(given.pop("tokens"), given.pop("scores"), given.pop("k"), **given)
