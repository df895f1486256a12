"""Layouts as data: address maps, placement, and the conversions against index arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.spec.migration import (
    BLOCK_ENTRY_BYTES,
    BlockEntry,
    Digit,
    Order,
)
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS, get_pim_layout
from nearkv_sim.golden.migrate_layout import from_pim, from_tiles, reorder_tiles, to_pim, to_tiles

LAYOUTS = list(PIM_LAYOUTS.values())
named = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)


def random_rows(layout, blocks, seed=1):
    bits = np.random.default_rng(seed).integers(
        0, 1 << 16, (blocks * layout.block_tokens, 2, layout.design.head_dim), np.uint16
    )
    return bits.view(np.float16)


def test_every_pim_design_has_a_layout():
    assert PIM_LAYOUTS.keys() == PIM_DESIGNS.keys()


@named
def test_addresses_are_numbers_in_mixed_radix(layout):
    rng = np.random.default_rng(2)
    for address in (0, layout.capacity_bytes - 1, *rng.integers(0, layout.capacity_bytes, 200).tolist()):
        place = layout.locate(address)
        assert layout.address_of(place) == address
    assert layout.locate(layout.column_bytes)[layout.stripe[0].name] == 1  # next column: next unit
    stripe_bytes = layout.tile_tokens * layout.column_bytes
    assert layout.locate(stripe_bytes)["column"] == 1


@named
def test_a_row_lies_in_one_unit_and_neighbours_in_others(layout):
    """What a unit streams: consecutive columns; tokens of a tile at one row and column of all its units."""
    units = [digit.name for digit in (*layout.stripe, *layout.above) if digit.name != "row"]
    base = 3 * layout.block_bytes
    for part in (0, 1):
        seen, starts = set(), set()
        for token in range(layout.tile_tokens):
            places = [
                layout.locate(base + layout.pim_offset(token, part, column * layout.column_bytes))
                for column in range(layout.row_columns)
            ]
            unit = {tuple(place[name] for name in units) for place in places}
            assert len(unit) == 1
            seen |= unit
            first = places[0]
            assert [p["column"] - first["column"] for p in places] == list(range(layout.row_columns))
            assert {place["row"] for place in places} == {first["row"]}
            starts.add((first["row"], first["column"]))
        assert len(starts) == 1
        assert len(seen) == layout.tile_tokens


@named
def test_conversion_puts_every_byte_where_the_formula_says(layout):
    rows = random_rows(layout, 2)
    blocks = to_pim(layout, rows)
    data = rows.view(np.uint8).reshape(2, layout.block_tokens, 2, layout.row_bytes)
    rng = np.random.default_rng(3)
    for _ in range(500):
        block, token, part, byte = (int(rng.integers(0, n)) for n in data.shape)
        assert blocks[block, layout.pim_offset(token, part, byte)] == data[block, token, part, byte]
    assert from_pim(layout, blocks).view(np.uint16).tobytes() == rows.tobytes()


def test_smallest_block_by_hand():
    """tiny_pim: 4 units, rows of 4 columns of 8 bytes. Column 1 of token 2's value, in the second tile."""
    layout = PIM_LAYOUTS["tiny_pim"]
    # V starts at 16·32 bytes; tile 1 is 4·32 further on; column 1 is 32 further; token 6 is the third.
    assert layout.pim_offset(6, 1, 8 + 5) == 16 * 32 + 4 * 32 + 32 + 2 * 8 + 5
    assert layout.locate(layout.pim_offset(6, 0, 8)) == {
        "byte": 0,
        "group": 0,
        "bank": 1,
        "column": 5,
        "row": 0,
    }


@named
def test_tiles_of_a_block_are_the_block(layout):
    """A block in PIM layout, cut into keys and values of each tile, is the stream of its tiles."""
    rows = random_rows(layout, 1)
    tiles = to_tiles(layout, rows)
    assert np.array_equal(from_tiles(layout, tiles).view(np.uint8), rows.view(np.uint8))
    stream = reorder_tiles(layout, tiles.view(np.uint8).reshape(-1), Order.ROWS, Order.PIM)
    halves = to_pim(layout, rows).reshape(2, layout.block_tiles, layout.half_tile_bytes)
    assert np.array_equal(stream.reshape(layout.block_tiles, 2, -1), halves.swapaxes(0, 1))
    back = reorder_tiles(layout, stream, Order.PIM, Order.ROWS)
    assert np.array_equal(back, tiles.view(np.uint8).reshape(-1))


@named
def test_a_tile_passes_keys_first(layout):
    rows = random_rows(layout, 1)
    tiles = to_tiles(layout, rows).view(np.uint16)
    for token in range(layout.block_tokens):
        tile, place = divmod(token, layout.tile_tokens)
        for part in (0, 1):
            assert np.array_equal(tiles[tile, part, place], rows[token, part].view(np.uint16))


def test_entries_round_trip():
    entry = BlockEntry(0x1234_5678_9000, 77)
    assert len(entry.pack()) == BLOCK_ENTRY_BYTES
    assert BlockEntry.unpack(entry.pack()) == entry
    assert BlockEntry.unpack(bytes(BLOCK_ENTRY_BYTES)) is None


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: get_pim_layout("hbm"), r"PIM layout is 'hbm'; allowed: tiny_pim, "),
        (lambda: LAYOUTS[0].locate(-1), r"address is -1; allowed: 0 to"),
        (lambda: LAYOUTS[0].address_of({"byte": 0}), r"digits are byte; allowed: byte, group"),
        (
            lambda: LAYOUTS[0].address_of(LAYOUTS[0].locate(0) | {"bank": 2}),
            r"bank is 2; allowed: 0 to 1",
        ),
        (lambda: replace(LAYOUTS[0], columns=12), r"column has size 12; allowed: a power of two"),
        (
            lambda: replace(LAYOUTS[0], stripe=(Digit("group", 4),), above=(Digit("row", 2), Digit("b", 2))),
            r"digits select 8 units; allowed: 4",
        ),
        (lambda: replace(LAYOUTS[0], block_tokens=2), r"block_tokens is 2; allowed: a power of two from 4"),
        (
            lambda: replace(LAYOUTS[1], stripe=(Digit("group", 32),), above=(Digit("rank", 16),)),
            r"a tile has 32 tokens; allowed: up to 16",
        ),
        (
            lambda: replace(LAYOUTS[0], above=(Digit("group", 1), Digit("row", 64))),
            r"digits are byte, group, bank, column, group, row; allowed: each name once",
        ),
        (
            lambda: replace(LAYOUTS[0], stripe=(), above=(Digit("row", 64), Digit("group", 4))),
            r"a tile has 64 bytes; allowed: from 128",
        ),
        (lambda: BlockEntry(3, 0).pack(), r"address is 0x3; allowed: even"),
        (lambda: BlockEntry(2, 1 << 32).pack(), r"does not fit its fields"),
        (lambda: BlockEntry.unpack(b""), r"entry has 0 bytes; allowed: 16"),
        (lambda: to_pim(LAYOUTS[0], np.zeros((8, 2, 16), np.float16)), r"rows hold 8 tokens; allowed: whole"),
        (lambda: to_pim(LAYOUTS[0], np.zeros((16, 2, 16))), r"rows are float64"),
        (
            lambda: to_tiles(LAYOUTS[0], np.zeros((3, 2, 16), np.float16)),
            r"rows hold 3 tokens; allowed: whole",
        ),
        (lambda: from_pim(LAYOUTS[0], np.zeros((1, 5), np.uint8)), r"blocks are uint8 \[1, 5\]"),
        (
            lambda: reorder_tiles(LAYOUTS[0], np.zeros(5, np.uint8), Order.ROWS, Order.PIM),
            r"data hold 5 bytes; allowed: whole tiles of 256",
        ),
    ],
)
def test_bad_arguments_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()
