"""Migration engine with its AXI managers on memories of its own, compiled, against the golden twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import Move, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.cosim import CosimDeadlock, Stalls
from nearkv_sim.golden.migrate_engine import MoveDescriptor

LAYOUT = PIM_LAYOUTS["tiny_pim"]
SHAPES = MoveShapes(LAYOUT, slot_bits=1, block_bits=7, address_bits=32)
DEVICE, FAR = 0, 1  # sequence slots of the table


def down(tag, block, to, flags=Move.RELAYOUT, tokens=16, first=0):
    return MoveDescriptor(tag, (DEVICE, block), (FAR, to), tokens, first, flags, block, to)


def up(tag, block, to, flags=Move.RELAYOUT, tokens=16, first=0):
    return MoveDescriptor(tag, (FAR, block), (DEVICE, to), tokens, first, flags | Move.UP, block, to)


KINDS = [
    Move.COPY,
    Move.RELAYOUT,
    Move.UP,
    Move.UP | Move.RELAYOUT,
    Move.QUANTISE,
    Move.QUANTISE | Move.RELAYOUT,
]


def test_one_move_of_every_kind(world):
    moves = [(up if Move.UP in kind else down)(n, n, 20 + n, kind) for n, kind in enumerate(KINDS)]
    world.run(moves)
    # What was quantised comes back, in both layouts.
    world.run([up(1, 24, 30, Move.EXPAND), up(2, 25, 31, Move.EXPAND | Move.RELAYOUT)])


def test_random_moves_under_pauses(make_world):
    """Any kinds, any tiles, sources and destinations that do not meet; other widths with busy compute."""
    for seed, world in enumerate([make_world(), make_world(busy=2), make_world((4, 8), busy=1)]):
        rng = np.random.default_rng(seed)
        moves = []
        targets = {Move.UP: rng.permutation(32) + 32, Move.COPY: rng.permutation(32) + 32}
        for tag in range(40):
            kind = KINDS[rng.integers(len(KINDS))]
            first = 4 * int(rng.integers(4))
            tokens = 4 * int(rng.integers(1, 5 - first // 4))
            to = int(targets[kind & Move.UP][tag % 32])
            make = up if Move.UP in kind else down
            if tag < 32:
                moves.append(make(tag, int(rng.integers(32)), to, kind, tokens, first))
        world.run(moves, Stalls(seed, 0.3, 0.3))


def test_refusals_touch_nothing(world):
    world.set_entry(DEVICE, 3, world.device_base - LAYOUT.block_bytes, 3)
    world.set_entry(FAR, 4, world.far_base + world.image_bytes, 4)
    world.set_entry(FAR, 5, world.far_base + 64, 5)
    world.table[FAR, 6] = 0
    good = down(0, 10, 40)
    moves = [
        good,
        replace(good, tag=1, tokens=0),
        replace(good, tag=2, tokens=6),
        replace(good, tag=3, first_token=2, tokens=4),
        replace(good, tag=4, first_token=4),
        up(5, 1, 2, Move.QUANTISE),
        down(6, 1, 2, Move.EXPAND),
        down(7, 3, 2),
        down(8, 1, 4),
        down(9, 1, 5),
        down(10, 1, 6),
        up(11, 6, 1),
        replace(good, tag=12, generation=9),
        replace(good, tag=13, destination_generation=9),
        replace(good, tag=14, source=(DEVICE, 127)),
        down(15, 11, 41),
    ]
    _, completions = world.run(moves)
    codes = [
        MoveCode.DONE,
        *[MoveCode.REFUSED] * 6,
        *[MoveCode.OUTSIDE] * 3,
        MoveCode.ABSENT,
        MoveCode.ABSENT,
    ]
    codes += [MoveCode.STALE, MoveCode.STALE, MoveCode.ABSENT, MoveCode.DONE]
    assert [completion.code for completion in completions] == codes


def test_difference_only_moves_copy_what_has_changed(world):
    for block in range(0, 16, 2):
        world.set_entry(FAR, 32 + block, world.far_base + (32 + block) * LAYOUT.block_bytes, block)
    result, completions = world.run([down(n, n, 32 + n, Move.RELAYOUT | Move.DIFFERENCE) for n in range(16)])
    codes = [completion.code for completion in completions]
    assert codes == [MoveCode.SKIPPED, MoveCode.DONE] * 8
    assert result.flags["o_far_write"].high_cycles == 8 * LAYOUT.block_bytes // 8


def test_generations_are_compared_for_equality(world):
    """They wrap around, so that no order is read into them."""
    newest = (1 << 32) - 1
    for block, (source, copy) in enumerate([(0, newest), (newest, 0), (newest, newest)]):
        world.set_entry(DEVICE, block, world.device_base + block * LAYOUT.block_bytes, source)
        world.set_entry(FAR, block, world.far_base + block * LAYOUT.block_bytes, copy)
    moves = [down(n, n, n, Move.RELAYOUT | Move.DIFFERENCE) for n in range(3)]
    moves = [replace(moves[0], generation=0), *(replace(move, generation=newest) for move in moves[1:])]
    _, completions = world.run(moves)
    codes = [completion.code for completion in completions]
    assert codes == [MoveCode.DONE, MoveCode.DONE, MoveCode.SKIPPED]


def test_of_two_moves_to_one_place_the_later_stays_on_a_single_path(world):
    world.run([down(0, 1, 40), down(1, 2, 40), down(2, 3, 40, Move.COPY)])
    world.run([up(0, 1, 50), up(1, 2, 50, tokens=8, first=4)])


def test_a_reset_in_the_middle_leaves_nothing_behind(world):
    moves = [down(0, 1, 40), down(1, 2, 41, Move.QUANTISE), up(2, 3, 42)]
    for cycle in (12, 40, 100, 160, 200, 300, 500):
        world.reset_during(moves, cycle)
        world.run([up(5, 4, 44), *moves])


def test_without_room_for_completions_a_bounded_number_of_moves_is_accepted(world):
    moves = [down(n, 1, 40, tokens=0) for n in range(60)]
    with pytest.raises(CosimDeadlock, match=rf"i_descriptor {3 * 16 + 3} of 60 beats"):
        world.rtl.run({"i_descriptor": world.words_of(moves)}, {}, max_idle_cycles=100)


@pytest.mark.parametrize(("flags", "burst_bytes"), [(Move.COPY, 16 * 8), (Move.RELAYOUT, LAYOUT.row_bytes)])
def test_small_moves_become_one_job(world, flags, burst_bytes):
    """Tiles of a block, asked for one by one, after moves that keep the path busy."""
    pairs = ((20, 50), (22, 52), (23, 54), (21, 56), (24, 58))
    busy = [down(n, *pair, flags) for n, pair in enumerate(pairs)]
    small = [down(10 + n, 1, 40, flags, tokens=4, first=4 * n) for n in range(4)]
    result, _ = world.run([*busy, *small])
    assert result.signals["o_jobs"] == len(busy) + 1
    assert result.flags["o_far_burst"].high_cycles == (len(busy) + 1) * LAYOUT.block_bytes // burst_bytes


def test_neighbouring_blocks_of_rows_become_one_job(world):
    """Without re-layout blocks are contiguous: physical neighbours join, whatever their logical order."""
    busy = [down(n, 20 + n, 50 + n) for n in range(4)]
    # block ^ 6 is where a block lies: 38, 39, 36, 37 are at 32 to 35, and so are their copies one further.
    small = [down(10 + n, block, block, Move.COPY) for n, block in enumerate((38, 39, 36, 37))]
    result, _ = world.run([*busy, *small])
    assert result.signals["o_jobs"] < len(busy) + len(small)


@pytest.mark.parametrize("make", [down, up])
@pytest.mark.parametrize("flags", [Move.RELAYOUT, Move.COPY])
def test_a_long_stream_fills_the_narrower_bus(world, make, flags):
    """64 KiB in 64 descriptors, table reads and all: from the first to the last beat on the narrower bus."""
    result, _ = world.run([make(n, n, n, flags) for n in range(world.blocks)])
    port = result.flags["o_far_write" if make is down else "o_device_write"]
    assert port.high_cycles == world.image_bytes // 8 == port.last_high_cycle - port.first_high_cycle + 1
    assert port.high_cycles >= 0.98 * result.cycles


def test_a_remembered_block_is_not_read_again(world):
    result, _ = world.run([down(n, 1, 40, tokens=4, first=4 * n) for n in range(4)])
    assert result.flags["o_table_read"].high_cycles == 2
    assert result.flags["o_table_read"].first_high_cycle == MigrationEngine(SHAPES, 8, (8,)).latency


def test_a_remembered_block_is_not_taken_for_a_newer_one(world):
    world.run([down(0, 1, 40)])
    world.set_entry(DEVICE, 1, world.device_base + 50 * LAYOUT.block_bytes, 99)
    world.run([replace(down(1, 1, 41), generation=99)])
    world.set_entry(DEVICE, 1, world.device_base + 51 * LAYOUT.block_bytes, 100)
    world.forget()
    _, completions = world.run([replace(down(2, 1, 42), generation=99)])
    assert completions[0].code is MoveCode.STALE


def test_compute_comes_first_but_not_for_ever(make_world):
    """Busy without end: a beat every patience + 1 cycles."""
    world = make_world(busy=4)
    result, _ = world.run([down(0, 1, 40)])
    beats = LAYOUT.block_bytes // 8
    assert beats * (world.patience_cycles + 1) <= result.cycles <= beats * (world.patience_cycles + 1) + 300


def test_the_wider_path_is_taken_first(make_world):
    world = make_world((4, 8))
    result, _ = world.run([down(0, 1, 40)])
    assert result.flags["o_far_write"].high_cycles == 0
    assert result.flags["o_last_far_write"].high_cycles == LAYOUT.block_bytes // 8
    world = make_world((4, 8))
    result, _ = world.run([down(n, n, 32 + n) for n in range(16)])
    assert 0 < result.flags["o_far_write"].high_cycles * 4 < result.flags["o_last_far_write"].high_cycles * 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MoveShapes(LAYOUT, slot_bits=0), r"slot_bits is 0; allowed: 1 to 16"),
        (lambda: MoveShapes(LAYOUT, address_bits=24), r"address_bits is 24; allowed: 32 to 64"),
        (lambda: MoveShapes(LAYOUT, tiles_bits=2), r"tiles_bits is 2; allowed: 3 to 16"),
        (lambda: MigrationEngine(SHAPES, 8, ()), r"far_bytes has 0 widths; allowed: 1 to 4"),
        (lambda: MigrationEngine(SHAPES, 8, (8,), queue=1), r"queue is 1; allowed: from 2"),
        (
            lambda: MigrationEngine(SHAPES, 8, (8,), patience_cycles=0),
            r"patience_cycles is 0; allowed: from 1",
        ),
        (
            lambda: MigrationEngine(SHAPES, 8, (8,), memory_latency_cycles=0),
            r"memory_latency_cycles is 0; allowed: from 1",
        ),
        (lambda: MigrationEngine(SHAPES, 0, (8,)), r"bus_bytes is 0; allowed: a power of two from 4 to 128"),
        (lambda: MigrationEngine(SHAPES, 8, (8, 0)), r"bus_bytes is 0; allowed"),
        (lambda: MigrationEngine(SHAPES, 8, (32,)), r"beat_bytes is 32 for tiny_pim"),
        (lambda: MigrationEngine(SHAPES, 8, (64,)), r"beat_bytes is 64 for tiny_pim"),  # longer than a row
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
