"""Placement invariance on the golden model: which tier holds a token, in what order and in which blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkv_hdl.spec.attention import Merge
from nearkv_sim.golden.attention import (
    Partial,
    attend_exact,
    logits,
    merge_exact,
    shard_maximum,
    weighted_sums,
)
from nearkv_sim.golden.reduction import divide, merge
from nearkv_sim.golden.stored_rows import Int8Rows, quantise_int8, value_exponent

PLACEMENTS = 1000
TIERS = 3  # HBM, DDR, SSD


@st.composite
def placements(draw):
    """Units per tier, the spread of tokens over them, the length of blocks, and a seed for the rest."""
    return (
        draw(st.tuples(*[st.integers(1, 6)] * TIERS)),
        draw(st.sampled_from(["even", "skewed", "one unit", "runs"])),
        draw(st.integers(1, 64)),
        draw(st.integers(0, 2**32 - 1)),
    )


def take(rows, tokens):
    return (
        Int8Rows(rows.codes[tokens], rows.exponents[tokens]) if isinstance(rows, Int8Rows) else rows[tokens]
    )


def place(kind: str, tokens: int, units: int, rng: np.random.Generator) -> np.ndarray:
    """Unit of every token."""
    if kind == "even":
        return rng.integers(0, units, tokens)
    if kind == "skewed":
        return np.minimum(rng.geometric(0.4, tokens) - 1, units - 1)
    if kind == "one unit":
        return np.full(tokens, rng.integers(units))
    return np.sort(rng.integers(0, units, tokens))


def attend_placed(query, keys, values, placement) -> Partial:
    """Both phases over a placement: shards in random token order, cut into blocks, merged tier by tier."""
    counts, kind, block, seed = placement
    rng = np.random.default_rng(seed)
    units = sum(counts)
    tokens = len(keys.codes) if isinstance(keys, Int8Rows) else len(keys)
    home = place(kind, tokens, units, rng)
    shards = [rng.permutation(np.flatnonzero(home == unit)) for unit in range(units)]
    scores = [logits(query, take(keys, shard))[0] for shard in shards]
    maximum = np.maximum.reduce([shard_maximum(s) for s in scores])
    exponent = value_exponent(values)
    partials = []
    for shard, s in zip(shards, scores, strict=True):
        blocks = [
            weighted_sums(s[:, i : i + block], take(values, shard[i : i + block]), maximum, exponent)
            for i in range(0, max(len(shard), 1), block)
        ]
        partials.append(merge_exact([blocks[i] for i in rng.permutation(len(blocks))]))
    tiers = np.split(np.arange(units), np.cumsum(counts)[:-1])
    merged = [merge([partials[i] for i in rng.permutation(tier)], Merge.EXACT) for tier in tiers]
    return merge([merged[i] for i in rng.permutation(TIERS)], Merge.EXACT)


def stored_rows(seed: int):
    """A query of 2 heads and 120 rows whose magnitudes spread over eight decades; every other time INT8."""
    rng = np.random.default_rng(seed)
    tokens, head_dim = 120, 32
    query = (rng.standard_normal((2, head_dim)) * 10.0 ** rng.uniform(-1, 1)).astype(np.float16)
    keys, values = (
        (rng.standard_normal((tokens, head_dim)) * 10.0 ** rng.uniform(-6, 2, (tokens, 1))).astype(np.float16)
        for _ in range(2)
    )
    return (query, quantise_int8(keys), quantise_int8(values)) if seed % 2 else (query, keys, values)


ROWS = [stored_rows(seed) for seed in range(8)]
WHOLE = [attend_exact(*rows) for rows in ROWS]


@settings(max_examples=PLACEMENTS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(placement=placements(), which=st.integers(0, len(ROWS) - 1))
def test_any_placement_gives_the_same_bits(placement, which):
    query, keys, values = ROWS[which]
    result, whole = attend_placed(query, keys, values, placement), WHOLE[which]
    assert np.array_equal(result.maximum, whole.maximum)
    assert np.array_equal(result.total, whole.total)
    assert np.array_equal(result.sums, whole.sums)
    exponent = value_exponent(values)
    assert np.array_equal(divide(result, exponent).view(np.uint16), divide(whole, exponent).view(np.uint16))


def test_the_property_can_fail():
    """Partials under maxima of their own, as in the exponential merge, do depend on the placement."""
    rng = np.random.default_rng(4)
    query, keys, values = ((rng.standard_normal((n, 32)) * 3).astype(np.float16) for n in (1, 200, 200))
    exponent = value_exponent(values)

    def split(cut: int) -> Partial:
        shards = []
        for rows in (slice(None, cut), slice(cut, None)):
            scores, _ = logits(query, keys[rows])
            shards.append(weighted_sums(scores, values[rows], shard_maximum(scores), exponent))
        return merge(shards, Merge.EXPONENTIAL)

    assert any(not np.array_equal(split(cut).sums, split(100).sums) for cut in (20, 60, 150))


@pytest.mark.parametrize("which", [0, 1])
def test_a_moved_value_exponent_is_not_free(which):
    """E_V belongs to the head, not to a block: under another one the sums differ, so it must be shared."""
    query, keys, values = ROWS[which]
    exponent = value_exponent(values)
    other = attend_exact(query, keys, values, exponent + 1)
    assert not np.array_equal(other.sums, WHOLE[which].sums)
