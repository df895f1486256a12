"""Weights, host scores, selection and recall against independent formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nearkv.experiments import attention


@pytest.fixture
def rows():
    rng = np.random.default_rng(2)
    shapes = {"query": (3, 64), "keys": (50, 64), "values": (50, 64)}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def test_weights_and_output_equal_the_textbook(rows):
    weights = attention.attention_weights(rows["query"], rows["keys"])
    output = attention.attend(weights, rows["values"])
    for head in range(3):
        exact = [
            math.exp(
                math.fsum(float(q) * float(k) for q, k in zip(rows["query"][head], key, strict=True)) / 8
            )
            for key in rows["keys"]
        ]
        expected = np.array(exact) / math.fsum(exact)
        np.testing.assert_allclose(weights[:, head], expected, rtol=1e-12)
        np.testing.assert_allclose(output[head], expected @ rows["values"].astype(float), rtol=1e-9)


def test_weights_of_huge_logits_do_not_overflow():
    query, keys = np.full((1, 64), 200, np.float16), np.full((2, 64), 200, np.float16)
    keys[1] = -200
    assert attention.attention_weights(query, keys).ravel().tolist() == [1.0, 0.0]


def test_host_scores_are_rounded_base_two_logits():
    query, keys = np.zeros((2, 64), np.float16), np.zeros((3, 64), np.float16)
    query[:, 0], keys[:, 0] = (1, -2), (0, 1, 3)
    scores = attention.host_scores(query, keys, np.array([0, 10]))
    step = math.log2(math.e) / 8
    assert scores[:, 0].tolist() == [0, math.floor(step + 0.5), math.floor(3 * step + 0.5)]
    assert scores[:, 1].tolist() == [
        0,
        math.floor(-2 * step * 1024 + 0.5),
        math.floor(-6 * step * 1024 + 0.5),
    ]


def test_score_weights_are_the_softmax_of_the_scores(rows):
    bits = np.array([16, 12, 20])
    scores = attention.host_scores(rows["query"], rows["keys"], bits)
    np.testing.assert_allclose(
        attention.score_weights(scores, bits),
        attention.attention_weights(rows["query"], rows["keys"]),
        rtol=1e-3,
    )


def test_heads_are_normalised_before_they_are_merged():
    # Head 0 has large raw scores that differ little; head 1 decides for token 2 alone.
    scores = np.array([[100, 0], [101, 0], [100, 9]], np.int64)
    weights = attention.score_weights(scores, np.array([0, 0]))
    assert attention.select(weights, 1).tolist() == [2]
    assert int(scores.sum(axis=1).argmax()) == 2
    raw = np.array([[1000, 0], [1010, 0], [1000, 9]], np.int64)
    merged = attention.score_weights(raw, np.array([6, 0]))
    assert attention.select(merged, 1).tolist() == [2]
    assert int(raw.sum(axis=1).argmax()) == 1  # what raw merging would take


def test_heads_are_merged_by_the_sum_of_their_weights():
    """Token 1 is first of no head, but has the largest sum."""
    weights = np.array([[0.5, 0.0], [0.3, 0.35], [0.0, 0.45], [0.2, 0.2]])
    assert attention.select(weights, 1).tolist() == [1]
    assert attention.select(weights, 2).tolist() == [0, 1]


def test_equal_weights_go_to_the_lower_token():
    assert attention.select(np.full((6, 2), 0.5), 3).tolist() == [0, 1, 2]


def test_recall_counts_what_the_scores_found():
    truth = np.array([[4.0, 1], [3, 2], [2, 3], [1, 4]])
    scores = np.array([[9, 9], [0, 8], [8, 0], [1, 0]])
    assert attention.recall(scores, truth, 2).tolist() == [0.5, 0.0]
    assert attention.recall(truth, truth, 2).tolist() == [1.0, 1.0]


def test_relative_error():
    reference = np.array([[3.0, 4.0]])
    assert attention.relative_error(reference * 1.5, reference) == pytest.approx(0.5)
    assert attention.relative_error(0 * reference, 0 * reference) == 0
    assert attention.relative_error(reference, 0 * reference) == math.inf
