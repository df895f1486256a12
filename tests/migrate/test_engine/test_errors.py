"""A bus that fails at one beat: the move whose beat it is says so, those around it are whole."""

from __future__ import annotations

import pytest

from nearkv_hdl.spec.migration import Move, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.golden.migrate_engine import MoveDescriptor

LAYOUT = PIM_LAYOUTS["tiny_pim"]
DEVICE, FAR = 0, 1  # sequence slots of the table
BLOCK_ROWS = LAYOUT.block_bytes // 8  # of the memories
TILE_ROWS, HALF_ROWS = LAYOUT.tile_bytes // 8, LAYOUT.half_tile_bytes // 8
LINE_ROWS = LAYOUT.row_bytes // 8  # of a token's key, or value
VALUES = BLOCK_ROWS // 2  # in PIM layout
# First, some and last beat of a half of the first tile, and the block's last beat, in either layout.
PIM_ROWS = [0, 7, HALF_ROWS - 1, VALUES, VALUES + 6, VALUES + HALF_ROWS - 1, BLOCK_ROWS - 1]
KEYS = [0, 2 * LINE_ROWS + 1, TILE_ROWS - LINE_ROWS - 1]
LINE_MAJOR_ROWS = [*KEYS, *(row + LINE_ROWS for row in KEYS), BLOCK_ROWS - 1]
FIRST = 6  # the block that lies first in both memories


def move(up, tag, block, to, tokens=LAYOUT.block_tokens, first=0, flags=Move.RELAYOUT):
    source, destination = (FAR, DEVICE) if up else (DEVICE, FAR)
    flags |= Move.UP if up else Move.COPY
    return MoveDescriptor(tag, (source, block), (destination, to), tokens, first, flags, block, to)


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
@pytest.mark.parametrize(("side", "rows"), [("device", PIM_ROWS), ("far", LINE_MAJOR_ROWS)])
def test_any_beat_of_either_half(make_world, up, side, rows):
    """The failing move is one of three that are under way together."""
    code = MoveCode.READ_ERROR if (side == "far") is up else MoveCode.WRITE_ERROR
    for row in rows:
        world = make_world(fails=side, bad_row=row)
        world.run([move(up, 0, 1, 40), move(up, 1, FIRST, FIRST), move(up, 2, 2, 41)], faults={1: code})


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
def test_records_that_fail(make_world, up):
    """A scale's beat, a code's and the last one, of two tiles' records."""
    flags = Move.RELAYOUT | (Move.EXPAND if up else Move.QUANTISE)
    for row in (0, 1, LAYOUT.record_bytes // 8 - 1, LAYOUT.record_bytes // 8, LAYOUT.record_bytes // 4 - 1):
        world = make_world(fails="far", bad_row=row)
        if up:  # records to expand, in both blocks that are read
            world.write_records(FIRST, 1)
        moves = [move(up, n, *pair, 8, flags=flags) for n, pair in enumerate([(1, 40), (FIRST, FIRST)])]
        world.run(moves, faults={1: MoveCode.READ_ERROR if up else MoveCode.WRITE_ERROR})


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
def test_moves_that_became_one_job_fail_together(make_world, up):
    """Which of them had the failing beat, in the third tile's values, the job does not say."""
    world = make_world(fails="device", bad_row=VALUES + 2 * HALF_ROWS + 1)
    busy = [move(up, n, 20 + 2 * n, 40 + 2 * n) for n in range(4)]
    small = [move(up, 4 + n, FIRST, FIRST, 4, 4 * n) for n in range(4)]
    code = MoveCode.WRITE_ERROR if up else MoveCode.READ_ERROR
    result, _ = world.run([*busy, *small], faults=dict.fromkeys(range(4, 8), code))
    assert result.signals["o_jobs"] == len(busy) + 1
