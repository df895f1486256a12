"""The scorer's golden model: by hand, against plain int64, at the ends of its ranges, and its refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.spec.designs import get_design
from nearkv_sim.golden.scorer import ScorerModel

TINY = get_design("tiny")
DESIGNS = {bits: replace(TINY, head_dims=(64, 128, 256), query_bits=bits) for bits in (8, 10, 12)}


def operands(blocks: int = 2, heads: int = 3, head_dim: int = 64, limit: int = 127):
    """Codes, query codes, shift and bias, uniformly random."""
    rng = np.random.default_rng(head_dim + limit)
    return (
        rng.integers(-128, 128, (blocks, 16, head_dim)).astype(np.int8),
        rng.integers(-limit, limit + 1, (blocks, heads, head_dim)).astype(np.int16),
        rng.integers(0, 4, (blocks, heads)),
        rng.integers(-(1 << 29), 1 << 29, (blocks, heads)),
    )


def plain(codes, query_codes, shift, bias) -> np.ndarray:
    """The formula in int64, one dot product at a time."""
    return np.array(
        [
            [
                (int(token.astype(np.int64) @ query.astype(np.int64)) << int(e)) + int(b)
                for query, e, b in zip(query_codes[block], shift[block], bias[block], strict=True)
            ]
            for block in range(len(codes))
            for token in codes[block]
        ]
    )


def test_one_token_by_hand():
    codes, query = np.zeros((1, 1, 64), np.int8), np.zeros((1, 2, 64), np.int16)
    codes[0, 0, :2] = -128, 3
    query[0, 0, :2], query[0, 1, 1] = (2, 5), -7
    scores = ScorerModel(TINY).score(codes, query, np.array([[0, 2]]), np.array([[1000, -1]]))
    assert scores.tolist() == [[1000 - 256 + 15, -1 - 7 * 3 * 4]]
    assert scores.dtype == np.int32


@pytest.mark.parametrize("query_bits", DESIGNS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_random_operands_equal_plain_integers(query_bits, head_dim):
    design = DESIGNS[query_bits]
    given = operands(head_dim=head_dim, limit=design.query_code.max)
    model = ScorerModel(design)
    assert np.array_equal(model.score(*given), plain(*given))
    converted = given[0].astype(model.exact_dtype(head_dim))
    assert np.array_equal(model.score(converted, *given[1:]), plain(*given))


@pytest.mark.parametrize("query_bits", DESIGNS)
def test_the_largest_sums_are_exact(query_bits):
    """Odd sums next to the largest ones: a float that is too narrow would round them."""
    design = DESIGNS[query_bits]
    codes = np.full((1, 256, 256), -128, np.int8)
    codes[0, np.arange(256), np.arange(256)] = 127
    query = np.full((1, 2, 256), design.query_code.max, np.int16)
    query[0, 1] *= -1
    given = codes, query, np.zeros((1, 2), np.int64), np.array([[5, -6]])
    assert np.array_equal(ScorerModel(design).score(*given), plain(*given))


def test_scores_reach_both_ends_of_32_bits():
    codes, query = np.zeros((1, 1, 64), np.int8), np.zeros((1, 2, 64), np.int16)
    bias = np.array([[2**31 - 1, -(2**31)]])
    assert ScorerModel(TINY).score(codes, query, np.array([[7, 0]]), bias).tolist() == bias.tolist()


def test_no_block_gives_no_score():
    assert ScorerModel(TINY).score(*operands(blocks=0)).shape == (0, 3)


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda codes: codes[:, :, :32], "head_dim is 32; design tiny allows: 64"),
        (1, lambda query: query[:1], "do not match; allowed"),
        (2, lambda shift: shift[:, :2], "do not match; allowed"),
        (3, lambda bias: bias[0], "do not match; allowed"),
        (1, lambda query: query * 0 - 128, "query code 128 in magnitude; allowed: at most 127"),
        (2, lambda shift: shift * 0 + 8, "shift is 8 to 8; allowed: 0 to 7"),
        (2, lambda shift: shift - 5, "allowed: 0 to 7"),
        (3, lambda bias: bias * 0 + 2**31, "allowed: signed 32 bit"),
        (3, lambda bias: bias * 0 - 2**32, "allowed: signed 32 bit"),
    ],
)
def test_bad_operands_are_refused(index, change, message):
    given = list(operands())
    given[index] = change(given[index])
    with pytest.raises(ValueError, match=message):
        ScorerModel(TINY).score(*given)
