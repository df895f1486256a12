"""Packer and unpacker in many shapes, interpreted: bits under pauses, cycles, and what a lost beat does."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from nearkv_hdl.pim.packed import packed_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.partial_packer import PartialPacker
from nearkv_hdl.pim.partial_unpacker import PartialUnpacker
from nearkv_hdl.spec.attention import Merge
from nearkv_sim.cosim import pack_words
from nearkv_sim.golden.attention import Partial
from nearkv_sim.golden.packed_partials import (
    expand_partial,
    pack,
    pack_maximum,
    packed_fields,
    quantise_partial,
)
from nearkv_sim.golden.partial_beats import concatenate_fields, maximum_fields, partial_fields

IDLE_CYCLES = 60  # more than any unit takes to go on
# head_dim, partial_lanes, beat_bytes.
SHORT = [(4, 2, 4), (4, 4, 4), (16, 16, 16), (16, 8, 16), (32, 16, 32), (16, 16, 8), (16, 16, 4)]
LONG_PREFIXES = [(8, 2, 4), (12, 2, 4), (256, 4, 8)]  # longer than sums take to fill a beat of the link
ODD = [(12, 4, 4), (20, 4, 4), (28, 2, 4), (24, 8, 8), (96, 4, 32), (64, 2, 64), (256, 4, 64)]
# `hbm_pim`'s and `tiny_pim`'s lanes on 16 bytes; 32 lanes, so that groups have one beat.
FULL = [(128, 16, 16), (64, 4, 16), (64, 32, 64), (96, 32, 8)]
SHAPES = SHORT + LONG_PREFIXES + ODD + FULL


def numbers(layout, fields) -> list[int]:
    """Payloads of a stream."""
    return [int.from_bytes(row.astype("<u4").tobytes(), "little") for row in pack_words(layout, **fields)]


def streams(shape, heads: int, maxima: int = 0):
    """Beats of partials in, of records, of partials out; the maxima come between first and second head."""
    head_dim, lanes, beat_bytes = shape
    rng = np.random.default_rng(head_dim)
    sums = rng.integers(-(1 << 47), 1 << 47, (heads, head_dim)) >> rng.integers(0, 48, (heads, 1))
    bounds = 1 << 31, 1 << 47
    maximum, total = (rng.integers(-bound, bound, heads + maxima) for bound in bounds)
    given, records, back = [], [], []
    for head in range(heads):
        one = slice(head, head + 1)
        partial = Partial(maximum[one], total[one], sums[one])
        quantised = quantise_partial(partial)
        given.append(partial_fields(partial, head - 13, Merge(head % 2), lanes))
        records.append(pack(quantised, head - 13, Merge(head % 2), beat_bytes))
        back.append(partial_fields(expand_partial(quantised), head - 13, Merge(head % 2), lanes))
        if head == 0 and maxima:
            alone = maximum_fields(maximum[heads:], 16, lanes)
            given.append(alone)
            back.append(alone)
            records.append(pack_maximum(maximum[heads:], 16, head_dim, beat_bytes))
    partials = partial_layout(lanes)
    return (
        numbers(partials, concatenate_fields(given)),
        numbers(packed_layout(beat_bytes), packed_fields(records, beat_bytes)),
        numbers(partials, concatenate_fields(back)),
    )


def exchange(unit, beats: list[int], pauses: float = 0.0):
    """Beats of `o`, cycles in which `i` and `o` moved, and whether the framing was found wrong.

    Ends once nothing has moved for IDLE_CYCLES.
    """
    rng = np.random.default_rng(len(beats))
    out, in_cycles, out_cycles, flags = [], [], [], []

    async def testbench(ctx):
        cycle = moved = 0
        offers = False
        while cycle - moved < IDLE_CYCLES:
            sent = len(in_cycles)
            offers = sent < len(beats) and (offers or rng.random() >= pauses)
            takes = rng.random() >= pauses
            if offers:
                ctx.set(Value.cast(unit.i.payload), beats[sent])
            ctx.set(unit.i.valid, offers)
            ctx.set(unit.o.ready, takes)
            if offers and ctx.get(unit.i.ready):
                in_cycles.append(cycle)
                offers, moved = False, cycle
            if takes and ctx.get(unit.o.valid):
                out.append(ctx.get(Value.cast(unit.o.payload)))
                out_cycles.append(cycle)
                moved = cycle
            await ctx.tick()
            cycle += 1
        flags.append(bool(ctx.get(unit.o_framing_error)))

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return out, in_cycles, out_cycles, flags[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_under_pauses(shape):
    given, records, back = streams(shape, heads=4, maxima=2)
    for kind, beats, wanted in ((PartialPacker, given, records), (PartialUnpacker, records, back)):
        out, in_cycles, _, framing_error = exchange(kind(*shape), beats, pauses=0.4)
        assert out == wanted
        assert len(in_cycles) == len(beats)
        assert not framing_error


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [PartialPacker, PartialUnpacker])
def test_latency_and_interval(kind, shape):
    """From a partial's last sum, or a prefix, to the first beat; the mean over partials back to back."""
    heads = 9
    given, records, back = streams(shape, heads)
    unit = kind(*shape)
    if kind is PartialPacker:
        beats, wanted, begins = given, records, unit.partial_beats
    else:
        beats, wanted, begins = records, back, unit.sizes.prefix_beats - 1
    out, in_cycles, out_cycles, _ = exchange(unit, beats)
    assert out == wanted
    assert out_cycles[0] - in_cycles[begins] == unit.latency
    first_end = out_cycles[len(out) // heads - 1]
    assert -(-(out_cycles[-1] - first_end) // (heads - 1)) == unit.interval


@pytest.mark.parametrize("shape", [(4, 4, 4), (64, 2, 64)], ids=str)
def test_maxima_alone_back_to_back(shape):
    head = 1 + shape[0] // shape[1]
    given, records, back = streams(shape, heads=1, maxima=9)
    packer, unpacker = PartialPacker(*shape), PartialUnpacker(*shape)
    prefix_beats, record_beats = packer.sizes.prefix_beats, packer.sizes.record_beats
    out, in_cycles, out_cycles, _ = exchange(packer, given[head:])
    assert out == records[record_beats:]
    assert out_cycles[0] - in_cycles[0] == 3
    assert out_cycles[-1] - out_cycles[0] == 9 * prefix_beats - 1
    out, _, out_cycles, _ = exchange(unpacker, records[record_beats:])
    assert out == back[head:]
    assert out_cycles[-1] - out_cycles[0] == 8 * (1 + prefix_beats)


@pytest.mark.parametrize("kind", [PartialPacker, PartialUnpacker])
def test_a_beat_lost_or_doubled_is_flagged_and_stops_nothing(kind):
    """At every place but a partial's last beat, whose double is a maximum alone to the packer."""
    shape = (8, 4, 4)
    given, records, _ = streams(shape, heads=4)
    beats, length = (given, 3) if kind is PartialPacker else (records, 6)
    for place in range(2 * length):
        broken = {"lost": beats[:place] + beats[place + 1 :]}
        if kind is PartialUnpacker or (place + 1) % length:
            broken["doubled"] = beats[: place + 1] + beats[place:]
        for what, some in broken.items():
            _, in_cycles, _, framing_error = exchange(kind(*shape), some)
            assert len(in_cycles) == len(some), (what, place)
            assert framing_error, (what, place)
