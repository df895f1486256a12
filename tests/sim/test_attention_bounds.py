"""Adversarial inputs: the proven bounds |Δl| ≤ N·2^-27 and |Δo| ≤ N·2^(E_V − 27) hold.

The reference sums the same weights, whose polynomial is bounded elsewhere, times the same values without
rounding; in units of 2^-26 and 2^(E_V−26) a rounding may cost ½ per token.
"""

from __future__ import annotations

import numpy as np
import pytest

from nearkv_hdl.spec.attention import DEGREES, LOGIT, SUM_TOKENS
from nearkv_hdl.spec.exp_table import POLYNOMIALS
from nearkv_sim.golden.attention import logits, shard_maximum, weight_table, weighted_sums
from nearkv_sim.golden.stored_rows import stored_values, value_exponent

NARROW = 2  # channels where many tokens matter


def check(scores, values, degree=3):
    """Bounds with the polynomial's mantissas, and with true powers of two plus the polynomial's error."""
    maximum, exponent = shard_maximum(scores), value_exponent(values)
    partial = weighted_sums(scores, values, maximum, exponent, degree)
    tokens = scores.shape[1]
    numbers = stored_values(values).astype(np.longdouble)
    below = (maximum[:, None] - (scores >> 16)).astype(np.longdouble)
    fraction = scores & 0xFFFF
    rounding = 0.5 * tokens
    # Beyond 2^-40 the design drops a weight whole; that is still below ½ in units of 2^-26.
    weights = weight_table(degree)[fraction].astype(np.longdouble) * 2.0**11 * np.exp2(-below)
    true = np.exp2(fraction.astype(np.longdouble) / 65536 - below) * 2.0**26
    epsilon = POLYNOMIALS[degree].accuracy.max_relative_error
    for given, slack in ((weights, 0.0), (true, epsilon)):
        total = given.sum(axis=1)
        sums = given @ numbers * np.exp2(np.longdouble(-exponent))
        size = given @ np.abs(numbers) * np.exp2(np.longdouble(-exponent))
        assert (np.abs(partial.total - total) <= rounding + slack * total).all()
        assert (np.abs(partial.sums - sums) <= rounding + slack * size).all()
    return partial


@pytest.mark.parametrize("degree", DEGREES)
def test_random(degree):
    rng = np.random.default_rng(degree)
    scores = rng.integers(-20 << 16, 20 << 16, (2, 3000)).astype(np.int32)
    check(scores, (rng.standard_normal((3000, 16)) * 30).astype(np.float16), degree)


@pytest.mark.parametrize("distance", [25, 26, 27, 28, 40, 41])
def test_one_maximal_token_and_2_20_near_the_cut(distance):
    """Each of the many alone rounds to at most one unit; together they may weigh as much as the one."""
    scores = np.full((1, SUM_TOKENS), -distance * 65536 + 33000, np.int32)
    scores[0, 12345] = 0
    values = np.full((SUM_TOKENS, NARROW), 0.999, np.float16)
    values[::2] *= -1
    values[12345] = 0.5
    check(scores, values)


def test_all_tokens_equal():
    scores = np.full((1, SUM_TOKENS), (1 << 16) - 1, np.int32)
    partial = check(scores, np.full((SUM_TOKENS, NARROW), 65504, np.float16))
    assert partial.total[0] > 1 << 46  # the largest sums there are, within signed 48 bits


def test_outliers_and_cancellation_in_v():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((5000, 16)) * 1e-4).astype(np.float16)
    values[:2] = [[60000] * 16, [-60000] * 16]
    scores = rng.integers(-3 << 16, 0, (2, 5000)).astype(np.int32)
    scores[:, :2] = 5
    check(scores, values)


def test_logits_at_saturation():
    """Saturated logits are compared as such: many equal maxima, and far minima that weigh nothing."""
    query = np.full((1, 64), 200, np.float16)
    keys = np.repeat([[20.0], [-20.0], [19.0], [0.0]], 64, axis=1).astype(np.float16)
    scores, saturated = logits(query, keys)
    assert saturated == 3
    assert scores.tolist() == [[LOGIT.max, LOGIT.min, LOGIT.max, 0]]
    check(scores, np.array([[1, 2], [4, 8], [-1, 0.5], [3, 3]], np.float16))


@pytest.mark.parametrize("value", [0.0, 2.0**-24, -(2.0**-24) * 1023])
def test_all_v_zero_or_subnormal(value):
    scores = np.random.default_rng(1).integers(-9 << 16, 0, (1, 1000)).astype(np.int32)
    partial = check(scores, np.full((1000, 16), value, np.float16))
    assert (partial.sums == 0).all() == (value == 0)
