"""Packed partial results: the rule against float64, the bytes, and what they cost a real model's output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.format import read_trace
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.packed_partial import PackedPartial, partial_bytes
from nearkv_sim.golden.attention import Partial, logits, shard_maximum, weighted_sums
from nearkv_sim.golden.packed_partials import (
    expand_partial,
    pack,
    pack_maximum,
    packed_fields,
    quantise_partial,
    unpack,
)
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


def test_an_error_is_at_most_half_a_step_of_the_smallest_kind():
    """In float64, where 48-bit sums, steps and 127.5 steps are exact."""
    rng = np.random.default_rng(1)
    sums = (rng.normal(size=(200, 128)) * 2.0 ** rng.uniform(0, 44, (200, 1))).astype(np.int64)
    quantised = quantise_partial(partial_of(sums))
    back = expand_partial(quantised)
    steps = np.ldexp(1.0, np.repeat(quantised.shifts, 32, axis=1))
    exact = sums.astype(np.float64)
    assert (np.abs(back.sums.astype(np.float64) - exact) <= steps / 2).all()
    assert np.array_equal(quantised.codes, np.floor(exact / steps + 0.5))
    assert np.abs(quantised.codes.astype(int)).max() == 127
    largest = np.abs(exact).reshape(200, 4, 32).max(axis=2)
    step = steps[:, ::32]
    assert (largest < 127.5 * step).all()
    assert ((largest >= 127.5 * step / 2) | (step == 1)).all()  # the next smaller step would not do
    assert np.array_equal(back.total, partial_of(sums).total)


def test_the_largest_sums():
    edges = [[(1 << 47) - 1, -(1 << 47)], [255 << 39, 0], [(255 << 39) - 1, 0]]
    quantised = quantise_partial(partial_of(edges))
    assert quantised.shifts.tolist() == [[41], [41], [40]]
    assert expand_partial(quantised).sums.tolist()[0] == edges[0]


def test_the_smallest_number_of_a_narrow_array_counts():
    """Its magnitude has no place in 32 bits."""
    sums = np.array([[-(1 << 31), 5]], np.int32)
    quantised = quantise_partial(Partial(np.zeros(1, np.int64), np.zeros(1, np.int64), sums))
    assert (quantised.shifts.tolist(), quantised.codes.tolist()) == ([[25]], [[-64, 0]])


def test_bytes_on_the_wire():
    assert [partial_bytes(d) for d in (64, 96, 128, 256)] == [396, 588, 780, 1548]
    assert [PackedPartial(d, 16).record_bytes for d in (64, 96, 128, 256)] == [80, 112, 144, 288]
    assert PackedPartial(256, 4).record_bytes == 12 + 8 + 256
    assert PackedPartial(128, 16).prefix_bytes == 16


def test_layout_by_hand():
    sums = np.zeros((1, 64), np.int64)
    sums[0, 0], sums[0, 63] = -100, 127 << 9
    partial = Partial(np.array([-(1 << 16)]), np.array([0x123456789ABC]), sums)
    record = pack(quantise_partial(partial), -13, Merge.EXPONENTIAL, 16)
    prefix = "bc 9a 78 56 34 12  00 00 ff ff  33  01  00 09  00 00"
    assert record[0].tobytes() == bytes.fromhex(prefix) + bytes([156, *[0] * 62, 127])
    alone = pack_maximum(np.array([5 << 16]), 16, 64, 8)
    assert alone[0].tobytes() == bytes.fromhex("00 00 00 00 00 00  00 00 05 00  10  02  00 00 00 00")


@pytest.mark.parametrize("exponent", [-13, -1, 0, 16])
@pytest.mark.parametrize("kind", Merge)
def test_unpack_is_the_inverse_of_pack(exponent, kind):
    rng = np.random.default_rng(exponent + 20)
    partial = Partial(
        rng.integers(-(1 << 31), 1 << 31, 50),
        rng.integers(-(1 << 47), 1 << 47, 50),
        rng.integers(-(1 << 47), 1 << 47, (50, 96)) >> rng.integers(0, 47, (50, 96)),
    )
    quantised = quantise_partial(partial)
    back, exponents, kinds = unpack(pack(quantised, exponent, kind, 8), 96, 8)
    for name in ("codes", "shifts"):
        assert np.array_equal(getattr(back, name), getattr(quantised, name))
    assert np.array_equal(back.exact.maximum, partial.maximum)
    assert np.array_equal(back.exact.total, partial.total)
    assert (exponents == exponent).all()
    assert (kinds == kind).all()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: PackedPartial(48, 4), r"head_dim is 48; allowed: 1 to 32 or a multiple of it"),
        (lambda: PackedPartial(64, 12), r"beat_bytes is 12 with head_dim 64; allowed: a power of two from 4"),
        (lambda: quantise_partial(partial_of([[0] * 48])), r"head_dim is 48"),
        (
            lambda: replace(quantise_partial(partial_of([[0] * 64])), shifts=np.zeros((1, 1), np.uint8)),
            r"codes are \[1, 64\], shifts \[1, 1\]; allowed: \[1, 64\] and \[1, 2\]",
        ),
        (
            lambda: replace(quantise_partial(partial_of([[0] * 64])), shifts=np.array([[3, 42]], np.uint8)),
            r"a shift is 42; allowed: 0 to 41",
        ),
        (
            lambda: unpack(np.zeros((2, 64), np.uint8), 64, 16),
            r"records are uint8 \[2, 64\]; allowed: uint8 \[2, 80\]",
        ),
        (lambda: unpack(np.zeros((2, 80), np.int64), 64, 16), r"records are int64 \[2, 80\]; allowed: uint8"),
        (
            lambda: quantise_partial(partial_of([[1 << 47]])),
            r"a sum is 0 to 140737488355328; allowed: signed 48",
        ),
        (
            lambda: quantise_partial(replace(partial_of([[1]]), sums=np.array([[1.5]]))),
            r"a sum is float64; allowed: integers",
        ),
        (
            lambda: quantise_partial(replace(partial_of([[1]]), maximum=np.zeros(2, np.int64))),
            r"sums are \[1, 1\], total \[1\], maximum \[2\]; allowed: \[heads, head_dim\], twice \[heads\]",
        ),
        (
            lambda: replace(quantise_partial(partial_of([[0] * 64])), codes=np.zeros((1, 64), np.int64)),
            r"codes are int64, shifts uint8; allowed: int8 and uint8",
        ),
        (
            lambda: pack(quantise_partial(partial_of([[0] * 64])), 17, Merge.EXACT, 16),
            r"value_exponent is 17; allowed: -13 to 16",
        ),
        (lambda: pack(quantise_partial(partial_of([[0] * 64])), 0, 2, 16), r"2 is not a valid Merge"),
        (
            lambda: pack(
                quantise_partial(replace(partial_of([[0] * 64]), total=np.array([-1 << 48]))),
                0,
                Merge.EXACT,
                16,
            ),
            r"a total is -281474976710656 to 0; allowed: signed 48 bit",
        ),
        (
            lambda: pack_maximum(np.array([1 << 31]), 0, 64, 16),
            r"a maximum is 0 to 2147483648; allowed: signed 32",
        ),
        (
            lambda: pack_maximum(np.zeros((2, 2), np.int64), 0, 64, 16),
            r"maximum is \[2, 2\]; allowed: \[heads\]",
        ),
        (
            lambda: packed_fields([np.zeros((2, 24), np.uint8)], 16),
            r"records are \[2, 24\]; allowed: \[records, n · 16\]",
        ),
        (
            lambda: unpack(np.full((2, 80), 2, np.uint8), 64, 16),
            r"a record is a maximum alone; allowed: records with codes",
        ),
    ],
)
def test_bad_arguments_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def shard_partials(stream, kind):
    """Partials of the last query of every head, tokens in eight shards."""
    query, exponent = stream.query[:, -1], value_exponent(stream.value)
    shards = np.array_split(np.arange(len(stream.key)), SHARDS)
    scores = [logits(query, stream.key[shard])[0] for shard in shards]
    maxima = [shard_maximum(part) for part in scores]
    if kind is Merge.EXACT:
        maxima = [np.maximum.reduce(maxima)] * SHARDS
    return [
        weighted_sums(part, stream.value[shard], maximum, exponent)
        for part, shard, maximum in zip(scores, shards, maxima, strict=True)
    ], exponent


def through_levels(partials, kind, packed_levels):
    """Merged in pairs, level by level; the partials that enter the first levels go through codes."""
    level = 0
    while len(partials) > 1:
        if level < packed_levels:
            partials = [expand_partial(quantise_partial(partial)) for partial in partials]
        partials = [merge(partials[i : i + 2], kind) for i in range(0, len(partials), 2)]
        level += 1
    return partials[0]


@pytest.mark.parametrize(("packed_levels", "error"), [(1, 0.0089), (3, 0.01236)])
@pytest.mark.parametrize("kind", Merge)
def test_output_error_on_a_real_model(kind, packed_levels, error):
    """Every shard's partial through codes; and those between the levels of a tree of pairs as well."""
    squares = np.zeros(2)
    for stream in read_trace(FIXTURE).streams:
        partials, exponent = shard_partials(stream, kind)
        exact, rounded = (
            divide(through_levels(partials, kind, levels), exponent).astype(np.float64)
            for levels in (0, packed_levels)
        )
        squares += np.square(rounded - exact).sum(), np.square(exact).sum()
    assert np.sqrt(squares[0] / squares[1]) == pytest.approx(error, rel=0.01)
