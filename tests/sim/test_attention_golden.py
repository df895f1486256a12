"""Attention golden: integers against a scalar oracle, float64 and the proven bounds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.format import read_trace
from nearkv_hdl.spec.attention import EMPTY_MAXIMUM, LOGIT, Merge, logit_scale
from nearkv_sim.golden.attention import (
    Partial,
    attend_exact,
    dot_products,
    logits,
    merge_exact,
    rhu,
    shard_maximum,
    weight_table,
    weighted_sums,
)
from nearkv_sim.golden.reduction import divide, reduce_tree
from nearkv_sim.golden.stored_rows import Int8Rows, quantise_int8, stored_values, value_exponent

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
STEPS_BETWEEN = 32  # every 32nd of the fixture's 256 query steps
L2_BOUNDS = {3: 1e-4, 4: 5e-5}  # largest relative L2 error before output rounding, by degree


def float_attention(query, keys, values, weight_type=np.float64, sum_type=np.float64):
    """Softmax attention, weights rounded to weight_type and summed in sum_type."""
    scores = query.astype(np.float64) @ np.asarray(keys, np.float64).T / math.sqrt(query.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True)).astype(weight_type).astype(sum_type)
    return (weights @ np.asarray(values, sum_type)) / weights.sum(axis=1, keepdims=True, dtype=sum_type)


def relative_l2(result, reference):
    return np.linalg.norm(result - reference, axis=1) / np.linalg.norm(reference, axis=1)


def unrounded(partial: Partial, exponent: int):
    return partial.sums * 2.0**exponent / partial.total[:, None]


@pytest.fixture(scope="module")
def fixture_jobs():
    """(query [heads, d], keys, values) of the real fixture, tokens up to each query."""
    trace = read_trace(FIXTURE)
    jobs = []
    for stream in trace.streams:
        for step in range(0, trace.steps, STEPS_BETWEEN):
            tokens = trace.first_query_position + step + 1
            jobs.append((stream.query[:, step], stream.key[:tokens], stream.value[:tokens]))
    return jobs


def random_jobs(seed: int, count: int = 8):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        tokens, head_dim = int(rng.integers(50, 3000)), int(rng.choice([64, 128]))
        yield tuple(
            (rng.standard_normal((rows, head_dim)) * scale).astype(np.float16)
            for rows, scale in ((2, rng.uniform(0.3, 3)), (tokens, 1), (tokens, 10.0 ** rng.uniform(-2, 2)))
        )


def test_two_tokens_by_hand():
    """q·k/√d·log2 e is 0 and −log2(e)·2/2: weights 1 and 2^-1.4427 (Q15.16: −94548, n = −2, f = 36524)."""
    query = np.array([[1, 0, 0, 0]], np.float16)
    keys = np.array([[0, 5, 0, 0], [-2, 0, 0, 0]], np.float16)
    values = np.array([[1.5, 0, 0, 0], [0, -1, 0, 0]], np.float16)
    scores, saturated = logits(query, keys)
    assert scores.tolist() == [[0, -94548]]
    assert saturated == 0
    mantissa = int(weight_table()[-94548 & 0xFFFF])
    assert abs(mantissa / 2**15 - 2 ** (36524 / 65536)) < 1e-4
    partial = weighted_sums(scores, values, shard_maximum(scores), 1)
    assert partial.total.tolist() == [2**26 + (mantissa << 11 >> 2)]
    assert partial.sums.tolist() == [[3 * 2**24, -(mantissa << 11 >> 3), 0, 0]]
    expected = 1.5 / (1 + math.exp(-1))
    assert abs(float(divide(partial, 1)[0, 0]) - expected) < 2**-10


def scalar_number(bits: int) -> tuple[int, int]:
    """(sig, ex) of an FP16 bit pattern, in plain integers."""
    field, fraction = bits >> 10 & 31, bits & 1023
    significand = fraction | (1024 if field else 0)
    return (-significand if bits >> 15 else significand), max(field, 1) - 25


def scalar_rhu(x: int, k: int) -> int:
    if k <= 0:
        return x << -k
    return 0 if k > 40 else (x + (1 << (k - 1))) >> k


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("int8", [False, True])
def test_equals_scalar_integers(seed, int8):
    """Every formula of the design, one number at a time, over magnitudes from subnormal to the largest."""
    rng = np.random.default_rng(seed)
    tokens, head_dim = 24, 16
    query = (rng.standard_normal((1, head_dim)) * 10.0 ** rng.uniform(-6, 3)).astype(np.float16)
    keys, values = (
        (rng.uniform(-1, 1, (tokens, head_dim)) * 10.0 ** rng.uniform(-7, 4.5, (tokens, head_dim))).astype(
            np.float16
        )
        for _ in range(2)
    )
    if int8:
        keys, values = quantise_int8(keys), quantise_int8(values)

    def number(rows, token, channel):
        if isinstance(rows, Int8Rows):
            return 16 * int(rows.codes[token, channel]), int(rows.exponents[token, channel // 32]) - 25
        return scalar_number(int(rows[token, channel].view(np.uint16)))

    scores, _ = logits(query, keys)
    for token in range(tokens):
        total = 0
        for channel in range(head_dim):
            a, a_exponent = scalar_number(int(query[0, channel].view(np.uint16)))
            b, b_exponent = number(keys, token, channel)
            total += scalar_rhu(a * b, -16 - a_exponent - b_exponent)
        logit = scalar_rhu(total * logit_scale(head_dim), 24)
        assert scores[0, token] == max(LOGIT.min, min(LOGIT.max, logit))
    maximum, exponent = int(shard_maximum(scores)[0]), value_exponent(values)
    partial = weighted_sums(scores, values, np.array([maximum]), exponent)
    total, sums = 0, [0] * head_dim
    for token in range(tokens):
        below = maximum - (int(scores[0, token]) >> 16)
        mantissa = int(weight_table()[int(scores[0, token]) & 0xFFFF])
        total += scalar_rhu(mantissa << 11, below)
        for channel in range(head_dim):
            significand, power = number(values, token, channel)
            shift = below + 15 + exponent - 26 - power
            assert shift >= 0
            sums[channel] += scalar_rhu(mantissa * significand, shift)
    assert partial.total.tolist() == [total]
    assert partial.sums.tolist() == [sums]


def test_half_up_in_float32_for_every_tie():
    """Products that lie exactly on ½ in units of 2^-16, of both signs, and their neighbours."""
    for odd in range(-2047, 2048, 2):
        query = np.array([[odd]], np.float32)
        key = np.array([[2.0**-17], [2.0**-17 * (1 + 2.0**-10)], [2.0**-17 * (1 - 2.0**-11)]], np.float32)
        expected = [math.floor(odd * float(k) * 2**16 + 0.5) for k in key[:, 0]]
        assert dot_products(query, key).tolist() == [expected]


def test_rhu_at_its_corners():
    x = np.array([0, 1, -1, 3, -3, 2**46, -(2**46)])
    assert rhu(x, 0).tolist() == x.tolist()
    assert rhu(x, 1).tolist() == [0, 1, 0, 2, -1, 2**45, -(2**45)]
    assert rhu(x, 41, zero_above=40).tolist() == [0] * 7
    assert rhu(np.array([2**62]), 63).tolist() == [1]
    assert rhu(np.array([-(2**62)]), 63).tolist() == [0]


@pytest.mark.parametrize("degree", [3, 4])
def test_error_against_float64_on_random_rows(degree):
    for query, keys, values in random_jobs(degree):
        exponent = value_exponent(values)
        result = unrounded(attend_exact(query, keys, values, exponent, degree), exponent)
        assert relative_l2(result, float_attention(query, keys, values)).max() <= L2_BOUNDS[degree]


@pytest.mark.parametrize("degree", [3, 4])
def test_error_against_float64_on_the_fixture(fixture_jobs, degree):
    """Bounded for every query head, and on average no worse than FP32 sums of FP16 weights."""
    errors, single = [], []
    for query, keys, values in fixture_jobs:
        exponent = value_exponent(values)
        reference = float_attention(query, keys, values)
        errors.extend(
            relative_l2(unrounded(attend_exact(query, keys, values, exponent, degree), exponent), reference)
        )
        single.extend(relative_l2(float_attention(query, keys, values, np.float16, np.float32), reference))
    assert max(errors) <= L2_BOUNDS[degree]
    assert np.mean(errors) <= np.mean(single)


@pytest.mark.parametrize("merge", list(Merge))
def test_units_and_reduction_on_the_fixture(fixture_jobs, merge):
    """Output error with FP16 rows over 8 units in two levels: L2 ≤ 1e-3, largest ≤ 1e-3·max|v|."""
    for query, keys, values in fixture_jobs:
        exponent, reference = value_exponent(values), float_attention(query, keys, values)
        shards = np.array_split(np.arange(len(keys)), 8)
        scores = [logits(query, keys[shard])[0] for shard in shards]
        maxima = [shard_maximum(s) for s in scores]
        shared = [np.maximum.reduce(maxima)] * len(shards)
        used = shared if merge is Merge.EXACT else maxima
        partials = [
            weighted_sums(s, values[shard], m, exponent)
            for s, shard, m in zip(scores, shards, used, strict=True)
        ]
        output = divide(reduce_tree(partials, (4, 2), merge), exponent).astype(np.float64)
        assert relative_l2(output, reference).max() <= 1e-3
        assert np.abs(output - reference).max() <= 1e-3 * np.abs(values.astype(np.float64)).max()


def test_int8_rows_cost_only_their_quantisation(fixture_jobs):
    """At most 1.05 times the error of an exact softmax over the same quantised rows."""
    for query, keys, values in fixture_jobs:
        reference = float_attention(query, keys, values)
        keys8, values8 = quantise_int8(keys), quantise_int8(values)
        explained = relative_l2(
            float_attention(query, stored_values(keys8), stored_values(values8)), reference
        )
        output = divide(attend_exact(query, keys8, values8), value_exponent(values8)).astype(np.float64)
        assert (relative_l2(output, reference) <= 1.05 * explained).all()


def test_int8_codes_and_exponents_by_hand():
    """31.75 = 127 · 2^-2, so the step is 2^-2; a group of zeros takes the smallest exponent."""
    row = np.zeros((1, 64), np.float16)
    row[0, :3] = [31.75, -0.25, 0.125]
    rows = quantise_int8(row)
    assert rows.codes[0, :3].tolist() == [127, -1, 0]  # ½ rounds to even
    assert rows.exponents.tolist() == [[19, 1]]  # 16 · 2^(19 − 25) = 2^-2
    assert value_exponent(rows) == 5  # 128 · 2^-2


ONES = np.ones((2, 16), np.float16)
ZERO_SCORES = np.zeros((1, 2), np.int32)
LARGEST = np.full((1, 128), 65504, np.float16)
TOO_MANY = np.zeros((1, 1 << 21), np.int32)


@pytest.mark.parametrize(
    ("refused", "quoted"),
    [
        (lambda: logits(LARGEST, LARGEST), "allowed: signed 48 bit"),
        (lambda: logits(np.full((1, 4), np.nan, np.float16), ONES[:, :4]), "Inf or NaN"),
        (
            lambda: weighted_sums(np.zeros((1, 1 << 21), np.int32), ONES, np.zeros(1, int), 1),
            "2097152 tokens",
        ),
        (lambda: weighted_sums(ZERO_SCORES, ONES, np.zeros(1, int), 0), "given is 0"),
        (lambda: weighted_sums(ZERO_SCORES, ONES, np.zeros(1, int), -14), "value_exponent is -14"),
        (lambda: weighted_sums(ZERO_SCORES, ONES, np.array([-1]), 1), "1 above maximum"),
        (lambda: Int8Rows(np.zeros((1, 64), np.int8), np.array([[0, 1]], np.uint8)), "0 to 1"),
        (lambda: Int8Rows(np.zeros((1, 64), np.int8), np.ones((1, 1), np.uint8)), r"\[1, 1\]"),
        (lambda: Int8Rows(np.zeros((1, 40), np.int8), np.ones((1, 1), np.uint8)), "head_dim is 40"),
        (lambda: stored_values(ONES.astype(np.float32)), "float32"),
        (lambda: logit_scale(0), "head_dim is 0"),
    ],
)
def test_refusals_quote_the_value(refused, quoted):
    with pytest.raises(ValueError, match=quoted):
        refused()


def test_saturated_logits_are_counted():
    query = np.full((1, 64), 200, np.float16)
    keys = np.stack([np.full(64, sign * 20, np.float16) for sign in (1, -1)])
    scores, saturated = logits(query, keys)
    assert scores.tolist() == [[LOGIT.max, LOGIT.min]]
    assert saturated == 2


def test_empty_shard():
    none = np.zeros((0, 16), np.float16)
    scores, _ = logits(np.ones((3, 16), np.float16), none)
    assert shard_maximum(scores).tolist() == [EMPTY_MAXIMUM] * 3
    partial = weighted_sums(scores, none, np.zeros(3, np.int64), -13)
    assert not partial.total.any()
    assert not partial.sums.any()
    assert not divide(partial, -13).any()


def test_different_maxima_do_not_merge_exactly():
    zeros = np.zeros((1, 4), np.int64)
    with pytest.raises(ValueError, match="different maxima"):
        merge_exact([Partial(np.array([m]), zeros[:, 0], zeros) for m in (0, 1 << 16)])
