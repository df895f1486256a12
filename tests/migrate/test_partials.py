"""Partial results as 8-bit codes: the rule, and what it costs the attention output of a real model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.format import read_trace
from nearkv_hdl.spec.attention import Merge
from nearkv_sim.golden.attention import Partial, logits, shard_maximum, weighted_sums
from nearkv_sim.golden.migrate_partials import expand_partial, partial_bytes, quantise_partial
from nearkv_sim.golden.reduction import divide, merge
from nearkv_sim.golden.stored_rows import value_exponent

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
SHARDS = 8


def partial_of(sums):
    sums = np.asarray(sums, np.int64)
    return Partial(np.zeros(len(sums), np.int64), np.ones(len(sums), np.int64), sums)


def test_smallest_examples_by_hand():
    quantised = quantise_partial(partial_of([[127, -127, 1, 0], [255, -128, 1, -1], [254, -3, 3, 0]]))
    assert quantised.shifts.tolist() == [[0], [2], [1]]  # 255 would round to 128 under a shift of 1
    assert quantised.codes.tolist() == [[127, -127, 1, 0], [64, -32, 0, 0], [127, -1, 2, 0]]
    assert expand_partial(quantised).sums.tolist() == [[127, -127, 1, 0], [256, -128, 0, 0], [254, -2, 4, 0]]


def test_an_error_is_at_most_half_a_step():
    rng = np.random.default_rng(1)
    sums = (rng.normal(size=(200, 128)) * 2.0 ** rng.uniform(0, 44, (200, 1))).astype(np.int64)
    quantised = quantise_partial(partial_of(sums))
    back = expand_partial(quantised)
    steps = np.repeat(1 << quantised.shifts.astype(np.int64), 32, axis=1)
    assert (2 * np.abs(back.sums - sums) <= steps).all()
    assert np.abs(quantised.codes.astype(int)).max() == 127
    finer = np.abs(sums) / np.maximum(steps // 2, 1)
    groups = finer.reshape(200, 4, 32).max(axis=2)
    assert ((groups >= 127.5) | (quantised.shifts == 0)).all()  # the next smaller step would not do
    assert np.array_equal(back.total, partial_of(sums).total)


def test_bytes_on_the_wire():
    assert partial_bytes(128, quantised=False) == 12 + 768
    assert partial_bytes(128, quantised=True) == 12 + 128 + 4
    assert partial_bytes(16, quantised=True) == 12 + 16 + 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: partial_bytes(48, quantised=True), r"head_dim is 48; allowed: up to 32 or a multiple of it"),
        (lambda: quantise_partial(partial_of([[0] * 48])), r"head_dim is 48"),
        (
            lambda: replace(quantise_partial(partial_of([[0] * 64])), shifts=np.zeros((1, 1), np.uint8)),
            r"codes are \[1, 64\], shifts \[1, 1\]; allowed: \[1, 64\] and \[1, 2\]",
        ),
    ],
)
def test_bad_arguments_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize("kind", Merge)
def test_output_error_on_a_real_model(kind):
    """Last queries of every stream, tokens in eight shards, every shard's partial through codes."""
    trace = read_trace(FIXTURE)
    squares = np.zeros(2)
    for stream in trace.streams:
        query = stream.query[:, -1]
        exponent = value_exponent(stream.value)
        shards = np.array_split(np.arange(trace.context_tokens), SHARDS)
        scores = [logits(query, stream.key[shard])[0] for shard in shards]
        maxima = [shard_maximum(part) for part in scores]
        if kind is Merge.EXACT:
            maxima = [np.maximum.reduce(maxima)] * SHARDS
        partials = [
            weighted_sums(part, stream.value[shard], maximum, exponent)
            for part, shard, maximum in zip(scores, shards, maxima, strict=True)
        ]
        lossy = [expand_partial(quantise_partial(partial)) for partial in partials]
        exact, rounded = (
            divide(merge(these, kind), exponent).astype(np.float64) for these in (partials, lossy)
        )
        squares += np.square(rounded - exact).sum(), np.square(exact).sum()
    assert np.sqrt(squares[0] / squares[1]) == pytest.approx(0.0089, rel=0.01)
