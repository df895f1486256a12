"""β by hand, and what it balances."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from nearkv.pipeline.beta import (
    PoolRates,
    balanced_ratio,
    hot_bytes,
    overlapped_ratio,
    skew_corrected_ratio,
)

GB = 1e9
PAPER = PoolRates(
    hot_score_bytes_per_s=120 * GB,
    cold_score_bytes_per_s=3.2 * GB,
    hot_link_bytes_per_s=32 * GB,
    cold_link_bytes_per_s=3.2 * GB,
)


def test_the_articles_vector():
    """α = 0.2: 32·120·(3.2 + 0.64) / (3.2·3.2·(32 + 24)) = 180/7."""
    exact = Fraction(32 * 120) * Fraction("3.84") / (Fraction("10.24") * 56)
    assert exact == Fraction(180, 7)
    assert balanced_ratio(PAPER, 0.2) == pytest.approx(25.714285714285714, rel=1e-15)


def test_both_sides_take_equally_long_at_the_balance():
    rng = np.random.default_rng(1)
    for hot, cold, hot_link, cold_link in rng.uniform(1e8, 1e11, (100, 4)):
        rates = PoolRates(
            hot_score_bytes_per_s=hot,
            cold_score_bytes_per_s=cold,
            hot_link_bytes_per_s=hot_link,
            cold_link_bytes_per_s=cold_link,
        )
        alpha = rng.uniform(0.01, 1)
        serial = balanced_ratio(rates, alpha)
        assert serial * (1 / hot + alpha / hot_link) == pytest.approx(1 / cold + alpha / cold_link, rel=1e-12)
        overlapped = overlapped_ratio(rates, alpha)
        busiest_hot = max(overlapped / hot, overlapped * alpha / hot_link)
        assert busiest_hot == pytest.approx(max(1 / cold, alpha / cold_link), rel=1e-12)


@pytest.mark.parametrize(("actual", "factor"), [(0.2, 1.0), (0.4, 1.15), (0.1, 0.925)])
def test_the_skew_correction(actual, factor):
    assert skew_corrected_ratio(20.0, actual) == pytest.approx(20.0 * factor, rel=1e-15)


def test_hot_bytes_by_hand():
    assert hot_bytes(1000, 4.0, 10_000) == 800
    assert hot_bytes(1000, 4.0, 500) == 500
    assert hot_bytes(1000, 0.0, 500) == 0
    assert hot_bytes(1000, math.inf, 5000) == 1000


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: balanced_ratio(PAPER, 0), "select_fraction is 0; allowed: above 0, to 1"),
        (lambda: overlapped_ratio(PAPER, 1.1), "select_fraction is 1.1"),
        (lambda: skew_corrected_ratio(-1.0, 0.2), "ratio is -1.0"),
        (lambda: skew_corrected_ratio(1.0, 0.0), "actual_fraction is 0.0"),
        (lambda: hot_bytes(-1, 1.0, 1), "kv_bytes is -1"),
        (lambda: hot_bytes(1, math.nan, 1), "ratio is nan"),
        (lambda: PoolRates(**(vars(PAPER) | {"cold_link_bytes_per_s": 0})), "cold_link_bytes_per_s is 0"),
        (
            lambda: PoolRates(**(vars(PAPER) | {"cold_link_bytes_per_s": math.inf})),
            "is inf; allowed: a finite",
        ),
    ],
)
def test_bad_arguments_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
