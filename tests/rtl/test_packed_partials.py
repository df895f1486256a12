"""Packer and unpacker of partial results, compiled, against their golden twin: bits, flags, resets."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.packed import packed_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.partial_packer import PartialPacker
from nearkv_hdl.pim.partial_unpacker import PartialUnpacker
from nearkv_hdl.pim.sum_codes import GroupShift, SumToCode
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.packed_partial import HEADER_BYTES
from nearkv_hdl.stream.with_reset import WithReset
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.attention import Partial
from nearkv_sim.golden.packed_partials import (
    expand_partial,
    pack,
    pack_maximum,
    packed_fields,
    quantise_partial,
)
from nearkv_sim.golden.partial_beats import concatenate_fields, maximum_fields, partial_fields

DRAIN_CYCLES = 60
SETTLE_CYCLES = 2  # the reset's cycle, and one more
PAUSES = [None, Stalls(1), Stalls(2, 0.6, 0.2), Stalls(3, 0.1, 0.8, mean_burst_cycles=7)]
# head_dim, partial_lanes, beat_bytes: links as wide as a beat's codes, narrower and wider; a prefix of four
# beats and of one; one group of 16 channels, three and eight groups.
SHAPES = [(16, 4, 4), (96, 8, 4), (256, 4, 64)]
EDGES = [0, 1, -1, 127, -127, 128, -128, 254, 255, -255, (1 << 47) - 1, -(1 << 47)]


@cache
def compiled(kind, *shape: int) -> CompiledComponent:
    return CompiledComponent(WithReset(kind(*shape)), name=kind.__name__, flatten=False)


def random_partials(heads: int, head_dim: int, seed: int) -> Partial:
    """Sums of every magnitude, differing within a group, and edges; m and l over their range."""
    rng = np.random.default_rng(seed)
    scale = rng.integers(0, 48, (heads, 1)) + rng.integers(0, 8, (heads, head_dim))
    sums = rng.integers(-(1 << 47), 1 << 47, (heads, head_dim)) >> np.minimum(scale, 47)
    at_edges = rng.random((heads, head_dim)) < 0.02
    sums = np.where(at_edges, rng.choice(EDGES, (heads, head_dim)), sums)
    return Partial(rng.integers(-(1 << 31), 1 << 31, heads), rng.integers(-(1 << 47), 1 << 47, heads), sums)


def streams(shape, heads: int, seed: int = 0):
    """Both sides of the link: heads and maxima alone, and once several maxima in a row.

    Returns fields of partials in, of records, and of partials out.
    """
    head_dim, lanes, beat_bytes = shape
    whole = random_partials(heads, head_dim, seed)
    given, packed, back = [], [], []
    for head in range(heads):
        one = slice(head, head + 1)
        partial = Partial(whole.maximum[one], whole.total[one], whole.sums[one])
        quantised = quantise_partial(partial)
        kind, exponent = Merge(head % 2), head % 30 - 13
        given.append(partial_fields(partial, exponent, kind, lanes))
        packed.append(pack(quantised, exponent, kind, beat_bytes))
        back.append(partial_fields(expand_partial(quantised), exponent, kind, lanes))
        if head % 3 == 1:
            maxima = random_partials(1 + head % 7, head_dim, head).maximum
            alone = maximum_fields(maxima, -1, lanes)
            given.append(alone)
            back.append(alone)
            packed.append(pack_maximum(maxima, -1, head_dim, beat_bytes))
    return concatenate_fields(given), packed_fields(packed, beat_bytes), concatenate_fields(back)


def run(kind, shape, fields, beats: int, stalls=None):
    """From reset: the result, and the fields of the beats that came out."""
    rtl = compiled(kind, *shape)
    rtl.reset()
    taken, given = partial_layout(shape[1]), packed_layout(shape[2])
    if kind is PartialUnpacker:
        taken, given = given, taken
    words = pack_words(taken, **fields)
    result = rtl.run({"i": words}, {"o": beats}, stalls=stalls, drain_cycles=DRAIN_CYCLES)
    return result, unpack_words(given, result.outputs["o"])


def data_bytes(beats, beat_bytes: int) -> np.ndarray:
    """Bytes of a packed stream's beats: a number where they fit 64 bits."""
    data = beats["data"]
    if data.ndim == 1:
        data = data.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :beat_bytes]
    return data


@pytest.mark.parametrize("stalls", PAUSES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rtl_equals_the_golden_model_under_pauses(shape, stalls):
    given, packed, back = streams(shape, heads=60)
    result, beats = run(PartialPacker, shape, given, len(packed["last"]), stalls)
    assert np.array_equal(data_bytes(beats, shape[2]), packed["data"])
    assert np.array_equal(beats["last"], packed["last"])
    assert not result.flags["o_framing_error"].high_cycles
    result, beats = run(PartialUnpacker, shape, packed, len(back["last"]), stalls)
    for field, wanted in back.items():
        assert np.array_equal(beats[field], wanted), field
    assert not result.flags["o_framing_error"].high_cycles
    assert not result.flags["o_invalid"].high_cycles


def test_whole_range_of_a_sum_and_the_only_saturation():
    """Every edge as a group's largest: the error is half a step, and 2^47 − 1 comes back as itself."""
    shape = SHAPES[0]
    edges = [s * ((255 << k >> 1) + step) for k in range(41) for step in (-1, 0, 1) for s in (-1, 1)]
    sums = np.zeros((len(edges) + 2, 16), np.int64)
    sums[:, 3] = [*edges, (1 << 47) - 1, -(1 << 47)]
    sums[:, 9] = sums[:, 3] // 3
    zeros = np.zeros(len(sums), np.int64)
    partial = Partial(zeros, zeros, sums)
    quantised = quantise_partial(partial)
    records = pack(quantised, 0, Merge.EXACT, shape[2])
    packed = packed_fields([records], shape[2])
    _, beats = run(PartialPacker, shape, partial_fields(partial, 0, Merge.EXACT, 4), len(packed["last"]))
    assert np.array_equal(data_bytes(beats, shape[2]), packed["data"])
    _, beats = run(PartialUnpacker, shape, packed, 5 * len(sums))
    back = beats["data"].reshape(len(sums), 5, 4)[:, 1:].reshape(sums.shape)
    assert (2 * np.abs(back - sums) <= 1 << quantised.shifts.astype(np.int64)).all()
    assert back[-2, 3] == (1 << 47) - 1


def test_faults_are_flagged_and_do_not_stop_the_units():
    """`last` too early or missing, in partials and in records; a shift out of range."""
    shape = SHAPES[0]
    given, packed, back = streams(shape, heads=4)
    for place in (2, 4):  # the second of a partial's sums, the last
        partials = {name: values.copy() for name, values in given.items()}
        partials["last"][place] ^= 1
        result, beats = run(PartialPacker, shape, partials, len(packed["last"]))
        assert result.flags["o_framing_error"].high_cycles
        assert np.array_equal(data_bytes(beats, shape[2]), packed["data"])

    for place in (0, 3, 5, 7):  # a prefix's first and last beat, the second of the codes, the last
        records = {name: values.copy() for name, values in packed.items()}
        records["last"][place] ^= 1
        result, beats = run(PartialUnpacker, shape, records, len(back["last"]))
        assert result.flags["o_framing_error"].high_cycles
        assert not result.flags["o_invalid"].high_cycles
        assert np.array_equal(beats["data"], back["data"])

    records = {name: values.copy() for name, values in packed.items()}
    for shift, is_bad in ((41, False), (42, True), (64, True)):
        records["data"][HEADER_BYTES // 4, 0] = shift
        result, beats = run(PartialUnpacker, shape, records, len(back["last"]))
        assert bool(result.flags["o_invalid"].high_cycles) == is_bad
        assert not result.flags["o_framing_error"].high_cycles
        assert np.array_equal(beats["data"][5:], back["data"][5:])  # only that partial's sums


# As many beats as a stalled output lets in.
BROKEN_OFF = [(PartialPacker, n) for n in range(1, 18)] + [(PartialUnpacker, n) for n in range(1, 8)]


@pytest.mark.parametrize(("kind", "beats"), BROKEN_OFF)
def test_a_reset_loses_what_is_under_way_and_nothing_after_it(kind, beats):
    """Broken off behind so many beats with the output stalled; then a stream comes through from its start."""
    shape = SHAPES[0]
    given, packed, back = streams(shape, heads=5)
    ways = {PartialPacker: (given, packed), PartialUnpacker: (packed, back)}
    layouts = [packed_layout(shape[2]) if "merge" not in f else partial_layout(shape[1]) for f in ways[kind]]
    words, wanted = (pack_words(layout, **f) for layout, f in zip(layouts, ways[kind], strict=True))
    unit = compiled(kind, *shape)
    unit.reset()
    unit.run({"i": words[:beats]}, {})
    gaps = {"i": SETTLE_CYCLES * (np.arange(len(words)) == 0)}
    reset = {"i_reset": np.zeros((1, 1), np.uint32)}
    result = unit.run({"i": words} | reset, {"o": len(wanted)}, gaps=gaps, drain_cycles=DRAIN_CYCLES)
    assert np.array_equal(result.outputs["o"], wanted)


@pytest.mark.parametrize(
    ("build", "quoted"),
    [
        (lambda: PartialPacker(48, 4, 4), "head_dim is 48"),
        (lambda: PartialPacker(64, 64, 4), "partial_lanes is 64 with head_dim 64"),
        (lambda: PartialUnpacker(64, 3, 4), "partial_lanes is 3"),
        (lambda: PartialUnpacker(64, 4, 2), "beat_bytes is 2 with head_dim 64"),
        (
            lambda: PartialPacker(96, 4, 64),
            "beat_bytes is 64 with head_dim 96; allowed: a power of two from 4",
        ),
        (lambda: GroupShift(4, 8), "sum_bits is 8; allowed: from 9"),
        (lambda: GroupShift(0), "lanes is 0; allowed: from 1"),
        (lambda: SumToCode(8), "sum_bits is 8; allowed: from 9"),
    ],
)
def test_refusals_quote_the_value(build, quoted):
    with pytest.raises(ValueError, match=quoted):
        build()
