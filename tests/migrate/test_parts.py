"""Batcher, planner and tile commands alone: what joins, what lies outside, how long it takes."""

from __future__ import annotations

import pytest

from nearkv_hdl.migrate.move_batcher import MoveBatcher
from nearkv_hdl.migrate.move_planner import MovePlanner
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.migrate.tile_commands import Place, TileCommands
from nearkv_hdl.spec.migration import Move, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS

LAYOUT = PIM_LAYOUTS["tiny_pim"]
SHAPES = MoveShapes(LAYOUT, slot_bits=1, block_bits=3, address_bits=32, tiles_bits=3)
TILE, BLOCK = LAYOUT.tile_bytes, LAYOUT.block_bytes
HERE = {"block": 0, "slot": 0}


# MoveBatcher.


def plan(source, destination, tiles, flags=Move.COPY, code=MoveCode.DONE):
    return {
        "job": {"source": source, "destination": destination, "tiles": tiles, "flags": flags},
        "source_end": source + tiles * TILE,
        "destination_end": destination + tiles * TILE,
        "bytes": tiles * TILE,
        "tag": 0,
        "code": code,
        "block": HERE,
    }


def batch(simulate, *plans):
    """Jobs as (source, destination, tiles) and entries as (moves, opens), with a path that wants one late."""
    unit = MoveBatcher(SHAPES)

    async def hunger(ctx):
        await ctx.tick().repeat(30)
        ctx.set(unit.i_hungry, 1)

    transfers = simulate(unit, {"i": plans}, ["o_job", "o_entry"], hunger)
    jobs = [(job.source, job.destination, job.tiles) for _, job in transfers["o_job"]]
    return jobs, [(entry.moves, entry.opens) for _, entry in transfers["o_entry"]]


FIRST = plan(0, 0x4000, 4)


@pytest.mark.parametrize(
    ("second", "tiles"),
    [
        (plan(4 * TILE, 0x4000 + 4 * TILE, 3), [7]),
        (plan(4 * TILE, 0x4000 + 4 * TILE, 4), [4, 4]),  # 8 tiles are more than three bits count
        (plan(5 * TILE, 0x4000 + 4 * TILE, 1), [4, 1]),
        (plan(4 * TILE, 0x4000 + 5 * TILE, 1), [4, 1]),
        (plan(4 * TILE, 0x4000 + 4 * TILE, 1, Move.UP), [4, 1]),
    ],
)
def test_what_continues_on_both_sides_in_the_same_way_joins(simulate, second, tiles):
    jobs, entries = batch(simulate, FIRST, second)
    assert [job[2] for job in jobs] == tiles
    assert jobs[0][:2] == (0, 0x4000)
    assert entries == [(1, 1), (1, len(tiles) - 1)]


def test_a_plan_without_a_job_leaves_the_open_one_open(simulate):
    skipped = plan(0x800, 0x900, 1, code=MoveCode.SKIPPED)
    jobs, entries = batch(simulate, FIRST, skipped, plan(4 * TILE, 0x4000 + 4 * TILE, 1))
    assert jobs == [(0, 0x4000, 5)]
    assert entries == [(1, 1), (0, 0), (1, 0)]


def test_a_hungry_path_gets_every_move_for_itself(simulate):
    plans = [plan(n * TILE, 0x4000 + n * TILE, 1) for n in range(3)]
    unit = MoveBatcher(SHAPES)
    transfers = simulate(unit, {"i": plans}, ["o_job", "o_entry"], inputs={"i_hungry": 1})
    assert [job.tiles for _, job in transfers["o_job"]] == [1, 1, 1]
    (start, _), *_ = transfers["i"]
    assert transfers["o_entry"][0][0] - start == 2
    assert transfers["o_job"][0][0] - start == unit.latency


# MovePlanner.


def descriptor(tokens=4):
    return {
        "tag": 0,
        "flags": Move.RELAYOUT,
        "source": HERE,
        "destination": {"block": 1, "slot": 0},
        "first_token": 0,
        "tokens": tokens,
        "generation": 0,
        "destination_generation": 0,
    }


WINDOWS = {"device_base": 0x10000, "device_bytes": BLOCK, "far_base": 0x20000, "far_bytes": 2 * BLOCK}


def test_time_of_a_plan(simulate):
    """Translations are there when they are awaited: a cycle each after their request."""
    unit = MovePlanner(SHAPES)
    answers = [{"address": base, "generation": 0, "code": MoveCode.DONE} for base in (0x10000, 0x20000)]
    transfers = simulate(
        unit, {"i": [descriptor()] * 2, "i_translation": answers * 2}, ["o", "o_request"], inputs=WINDOWS
    )
    assert [made.code for _, made in transfers["o"]] == [MoveCode.DONE] * 2
    assert transfers["i"][1][0] - transfers["i"][0][0] == 5 + 2 * 1
    transfers = simulate(MovePlanner(SHAPES), {"i": [descriptor(0)] * 2}, ["o"], inputs=WINDOWS)
    assert transfers["o"][0][0] - transfers["i"][0][0] == unit.latency
    assert transfers["i"][1][0] - transfers["i"][0][0] == unit.interval


@pytest.mark.parametrize(
    ("source", "destination", "code"),
    [
        (0x10000, 0x20000, MoveCode.DONE),
        (0x10000, 0x20000 + BLOCK, MoveCode.DONE),  # the last of its window
        (0x10000 + BLOCK, 0x20000, MoveCode.OUTSIDE),
        (0x10000, 0x20000 + 2 * BLOCK, MoveCode.OUTSIDE),
        (0x10000 - BLOCK, 0x20000, MoveCode.OUTSIDE),
        (0x20000, 0x10000, MoveCode.OUTSIDE),  # sides exchanged
        (0x10000, 0x20000 + BLOCK // 2, MoveCode.OUTSIDE),
        (0x10000, (1 << 32) - BLOCK, MoveCode.OUTSIDE),
    ],
)
def test_blocks_lie_within_their_sides_windows(simulate, source, destination, code):
    answers = [{"address": at, "generation": 0, "code": MoveCode.DONE} for at in (source, destination)]
    transfers = simulate(
        MovePlanner(SHAPES),
        {"i": [descriptor()], "i_translation": answers},
        ["o", "o_request"],
        inputs=WINDOWS,
    )
    assert [made.code for _, made in transfers["o"]] == [code]


# TileCommands.


def offsets(place, tile):
    """Offset and bytes of every command of a tile of two."""
    half, row = LAYOUT.half_tile_bytes, LAYOUT.row_bytes
    if place is Place.PIM:
        return [(tile * half + part, half) for part in (0, LAYOUT.value_offset_bytes)]
    if place is Place.ROWS:
        parts = [(token * 2 + part) * row for part in (0, 1) for token in range(LAYOUT.tile_tokens)]
        return [(tile * TILE + part, row) for part in parts]
    return [(0, 2 * (TILE if place is Place.BYTES else LAYOUT.record_bytes))][tile:]


@pytest.mark.parametrize("place", Place)
def test_commands_of_a_run(simulate, place):
    unit = TileCommands(SHAPES)
    transfers = simulate(unit, {"i": [{"address": BLOCK, "tiles": 2, "place": place}] * 2}, ["o"])
    expected = [*offsets(place, 0), *offsets(place, 1)]
    (start, _), (following, _) = transfers["i"]
    first = transfers["o"][: len(expected)]
    assert [cycle - start for cycle, _ in first] == [unit.latency + n for n in range(len(expected))]
    assert following - start == 1 + len(expected)
    assert [(command.address - BLOCK, command.bytes) for _, command in first] == expected
    assert len(transfers["o"]) == 2 * len(expected)
