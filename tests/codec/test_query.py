from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkv.codec.key_block import KeyBlocks, dequantise_keys, quantise_keys
from nearkv.codec.query import LOG2_E, FoldedQuery, PreparedQuery, fold_query, prepare_query, rhu
from nearkv_hdl.spec.formats import folded_query
from nearkv_hdl.spec.formats import rhu as exact_rhu
from nearkv_hdl.spec.layout import KeyFormat

INT8, INT4 = KeyFormat.INT8, KeyFormat.INT4
CODE8 = folded_query(8)


def normal(seed: int, rows: int, head_dim: int = 64, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).normal(size=(rows, head_dim))).astype(np.float16)


def scores(blocks: KeyBlocks, folded: FoldedQuery) -> np.ndarray:
    """Scores as integers [tokens, heads], in plain int64."""
    codes = blocks.codes.astype(np.int64)
    is_int4 = np.array([f is INT4 for f in folded.key_format])
    codes[is_int4] = (codes[is_int4] >> 4) * 16
    dots = np.einsum("bti,bhi->bth", codes, folded.codes.astype(np.int64))
    return ((dots << folded.shift[:, None, :]) + folded.bias[:, None, :]).reshape(-1, folded.bias.shape[1])


def logits(keys: np.ndarray, query: np.ndarray) -> np.ndarray:
    """True base-2 logits, float64 [tokens, heads]."""
    return keys.astype(np.float64) @ query.astype(np.float64).T * LOG2_E / math.sqrt(keys.shape[1])


def test_rhu_agrees_with_rational_arithmetic():
    x = np.arange(-70, 71)
    for k in range(-3, 8):
        exact = [(Fraction(int(v)) / Fraction(2) ** k + Fraction(1, 2)).__floor__() for v in x]
        assert rhu(x, k).tolist() == exact
    assert rhu(np.array([-(2**60), 2**60 - 1]), 63).tolist() == [0, 0]
    assert rhu(np.array([8, 8]), np.array([2, -2])).tolist() == [2, 32]


def test_preparation_by_hand():
    """q = (1, −½, 0 …): the largest mantissa lies in [2^14, 2^15), the other is half of it, rounded up."""
    query = np.zeros((1, 64), np.float16)
    query[0, :2] = 1, -0.5
    prepared = prepare_query(query)
    assert prepared.fraction_bits.tolist() == [17]
    assert prepared.mantissa[0, :3].tolist() == [round(LOG2_E / 8 * 2**17), -round(LOG2_E / 16 * 2**17), 0]


@given(st.integers(0, 2**32), st.sampled_from([2.0**-24, 1e-4, 1.0, 600.0]))
@settings(max_examples=40, deadline=None)
def test_preparation_uses_all_sixteen_bits(seed, scale):
    query = normal(seed, 3, 128, scale)
    prepared = prepare_query(query)
    largest = np.abs(prepared.mantissa).max(axis=1)
    assert (largest <= 2**15 - 1).all()
    assert (largest[query.any(axis=1)] >= 2**14).all()
    value = np.ldexp(prepared.mantissa.astype(float), -prepared.fraction_bits[:, None].astype(np.int32))
    exact = query.astype(np.float64) * LOG2_E / math.sqrt(128)
    assert (np.abs(value - exact) <= 0.5 * 2.0 ** -prepared.fraction_bits[:, None]).all()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("key_format", [INT8, INT4])
@pytest.mark.parametrize("query_bits", [8, 10, 12])
def test_scores_are_logits_within_the_rounding_of_query_and_codes(head_dim, key_format, query_bits):
    keys, query = normal(1, 512, head_dim), normal(2, 4, head_dim)
    blocks = quantise_keys(keys)
    folded = fold_query(prepare_query(query), blocks.headers, key_format, folded_query(query_bits))
    value = scores(blocks, folded) * 2.0**-folded.score_fraction_bits
    # Against the keys the codes stand for, only the rounding of q' is left: half a unit times |code + ½|.
    seen = dequantise_keys(blocks, key_format)
    unit = np.ldexp(1.0, folded.shift - folded.score_fraction_bits)
    centred = np.abs(
        (seen - np.repeat(blocks.headers.centre.astype(float), 128, 0))
        / np.repeat(blocks.headers.scale.astype(float), 128, 0)
    )
    bound = 0.5 * centred.sum(axis=1)[:, None] * np.repeat(unit, 128, 0) + 2e-3
    assert (np.abs(value - logits(seen, query)) <= bound).all()
    # And typically far less: errors of 64 or more channels average out.
    assert np.sqrt(np.mean((value - logits(seen, query)) ** 2)) < 0.1 * bound.mean()


@given(st.integers(0, 2**32), st.sampled_from([1.0, 8.0, 64.0, 4000.0]), st.sampled_from([1e-3, 1.0, 1000.0]))
@settings(max_examples=40, deadline=None)
def test_shift_is_the_smallest_and_fraction_bits_the_most_that_fit(seed, outlier, query_scale):
    keys = normal(seed, 384)
    keys[130] *= np.float16(outlier)
    query = prepare_query(normal(seed + 1, 2, 64, query_scale))
    blocks = quantise_keys(keys)
    folded = fold_query(query, blocks.headers, INT8, CODE8)
    assert np.abs(folded.codes).max() <= CODE8.max
    assert folded.shift.min() >= 0
    assert folded.shift.max() <= 7
    assert np.abs(scores(blocks, folded)).max() < 2**31
    # One shift less would saturate: the largest unrounded code of every shifted block is above qmax / 2.
    shifted = folded.shift > 0
    assert (np.abs(folded.codes).max(axis=2)[shifted] >= CODE8.max // 2).all()
    # One fraction bit more is refused.
    for head in range(2):
        one = PreparedQuery(query.mantissa[head : head + 1], query.fraction_bits[head : head + 1])
        bits = folded.score_fraction_bits[head : head + 1]
        np.testing.assert_array_equal(
            fold_query(one, blocks.headers, INT8, CODE8, bits).codes[:, 0], folded.codes[:, head]
        )
        if bits[0] < 24:
            with pytest.raises(ValueError, match=f"allowed: at most \\[{bits[0]}\\]"):
                fold_query(one, blocks.headers, INT8, CODE8, bits + 1)


@pytest.mark.parametrize("key", [0.0, 65504.0, -65504.0, 2.0**-24])
@pytest.mark.parametrize("query", [0.0, 65504.0, 2.0**-24])
def test_extreme_operands_fit(key, query):
    keys = np.full((256, 256), key, np.float16)
    keys[3, 5] = 65504
    queries = np.full((2, 256), query, np.float16)
    queries[1] *= -1
    for key_format in KeyFormat:
        blocks = quantise_keys(keys)
        folded = fold_query(prepare_query(queries), blocks.headers, key_format, CODE8)
        assert np.abs(scores(blocks, folded)).max() < 2**31
        assert np.abs(folded.codes).max() <= CODE8.max


def test_blocks_of_both_formats_share_one_scale():
    """The same block, streamed as INT8 and as INT4, gives scores that differ by the low plane only."""
    keys, query = normal(3, 128), normal(4, 1)
    twice = quantise_keys(np.concatenate([keys, keys]))
    folded = fold_query(prepare_query(query), twice.headers, (INT8, INT4), CODE8)
    both = scores(twice, folded).reshape(2, 128) * 2.0**-folded.score_fraction_bits
    true = logits(keys, query)[:, 0]
    assert np.abs(both[0] - true).max() < 0.15
    assert np.abs(both[1] - true).max() < 1.0
    assert abs((both[1] - both[0]).mean()) < 0.05


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (np.zeros((9, 64), np.float16), "9 heads; allowed: 1 to 8"),
        (np.zeros((0, 64), np.float16), "0 heads"),
        (np.zeros((1, 65), np.float16), "head_dim is 65"),
        (np.zeros((1, 64), np.float32), "float32"),
        (np.full((1, 64), np.inf, np.float16), "query is inf at token 0, channel 0"),
    ],
)
def test_bad_queries_are_refused(query, message):
    with pytest.raises(ValueError, match=message):
        prepare_query(query)


def test_arguments_that_do_not_match_are_refused():
    blocks = quantise_keys(normal(0, 256))
    with pytest.raises(ValueError, match="query has head_dim 128; the blocks have 64"):
        fold_query(prepare_query(normal(0, 1, 128)), blocks.headers, INT8, CODE8)
    with pytest.raises(ValueError, match="names 3 blocks; allowed: one format, or 2"):
        fold_query(prepare_query(normal(0, 1)), blocks.headers, (INT8,) * 3, CODE8)


def test_the_bias_is_the_stated_integer_formula():
    """Every rounding is part of the format, since hardware may fold: in Python's integers, term by term."""
    keys, query = normal(11, 256), normal(12, 2)
    blocks, prepared = quantise_keys(keys), prepare_query(query)
    folded = fold_query(prepared, blocks.headers, (INT8, INT4), CODE8, np.array([9, 9]))

    def fixed(value: np.float16) -> int:
        return int(Fraction(float(value)) * 2**24)

    halves = {"products": 0, "anchor": 0, "mean": 0}  # sums whose rounding up changes the bias
    for block, head in np.ndindex(2, 2):
        unit = 24 + int(prepared.fraction_bits[head]) - 9
        guarded = anchored = mean_dot = 0
        for channel, mean in enumerate(blocks.headers.mean_code[block].tolist()):
            centre, scale = (
                fixed(table[block, channel]) for table in (blocks.headers.centre, blocks.headers.scale)
            )
            product = int(prepared.mantissa[head, channel]) * (2 * centre + scale * (2 * mean + 1))
            guarded += exact_rhu(product, unit + 1 - 8)
            halves["products"] += exact_rhu(product, unit + 1 - 8) != product >> (unit + 1 - 8)
            mean_dot += int(folded.codes[block, head, channel]) * (2 * mean - (0, 15)[block])
        mean_dot <<= int(folded.shift[block, head])
        anchored = exact_rhu(guarded, 8)
        halves["anchor"] += anchored != guarded >> 8
        halves["mean"] += exact_rhu(mean_dot, 1) != mean_dot >> 1
        assert folded.bias[block, head] == anchored - exact_rhu(mean_dot, 1)
    assert min(halves.values()) > 0  # no rounding could be a floor
