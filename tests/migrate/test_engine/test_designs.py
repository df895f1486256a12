"""The engine of real devices, at the top of their addresses: moves of every kind, a single one's rate.

ddr_pim, whose columns are narrow, compiles in a third of the time of the others, which take a minute of CPU.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import Move, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_hdl.verilog import to_rtlil
from nearkv_sim.golden.migrate_engine import MoveDescriptor

DEVICE, FAR = 0, 1  # sequence slots of the table
BLOCKS = 8
DESIGNS = [  # name, widths of both buses
    ("ddr_pim", 16, 16),
    pytest.param(("hbm_pim", 32, 32), marks=pytest.mark.slow),
    pytest.param(("ssd_pim", 32, 16), marks=pytest.mark.slow),
]
# Of the narrower bus, that a single move of 64 KiB fills from its first beat read to its last one written.
PERCENT = {"ddr_pim": 93.9, "hbm_pim": 93.7, "ssd_pim": 98.2}
CYCLES = {"ddr_pim": 4500, "hbm_pim": 2324, "ssd_pim": 4308}  # of it, from descriptor to completion


def world_of(make_world, name, device_bytes, far_bytes):
    layout = PIM_LAYOUTS[name]
    return make_world(
        setup={
            "name": name,
            "device_bytes": device_bytes,
            "far_bytes": (far_bytes,),
            "blocks": BLOCKS,
            "address_bits": 64,
            "device_base": layout.capacity_bytes - BLOCKS * layout.block_bytes,
            "far_base": 1 << 40,
        }
    )


def move(tag, block, to, flags, tokens, first=0):
    source, destination = (FAR, DEVICE) if Move.UP in flags else (DEVICE, FAR)
    return MoveDescriptor(tag, (source, block), (destination, to), tokens, first, flags, block, to)


@pytest.mark.parametrize("shape", DESIGNS, ids=str)
def test_moves_of_every_kind(make_world, shape):
    """Completions and every byte of both memories, as the golden model has them."""
    world = world_of(make_world, *shape)
    layout = world.layout
    block, tile = layout.block_tokens, layout.tile_tokens
    moves = [
        move(0, 0, 4, Move.RELAYOUT, block),
        move(1, 0, 4, Move.UP | Move.RELAYOUT, block),
        move(2, 1, 5, Move.RELAYOUT, 3 * tile, 2 * tile),
        move(3, 1, 5, Move.UP | Move.RELAYOUT, tile, block - tile),
        move(4, 2, 6, Move.RELAYOUT | Move.QUANTISE, block),
        move(5, 3, 7, Move.QUANTISE, 2 * tile, tile),
        move(6, 2, 6, Move.UP, block),
        move(7, 3, 3, Move.RELAYOUT | Move.DIFFERENCE, block),
        move(8, 3, 7, Move.UP | Move.RELAYOUT | Move.DIFFERENCE, 2 * tile),
        move(9, 0, 4, Move.RELAYOUT, tile // 2),
        move(10, 0, 4, Move.UP | Move.QUANTISE, block),
        move(11, 0, 4, Move.RELAYOUT, block, tile),
        replace(move(12, 0, 4, Move.RELAYOUT, block), generation=99),
    ]
    _, completions = world.run(moves)
    codes = {7: MoveCode.SKIPPED, 12: MoveCode.STALE, **dict.fromkeys((9, 10, 11), MoveCode.REFUSED)}
    assert [done.code for done in completions] == [codes.get(n, MoveCode.DONE) for n in range(len(moves))]
    # What was quantised comes back, in both layouts.
    expand = Move.UP | Move.EXPAND
    world.run([move(0, 6, 0, expand | Move.RELAYOUT, block), move(1, 7, 1, expand, 2 * tile, tile)])


@pytest.mark.parametrize("shape", DESIGNS, ids=str)
@pytest.mark.parametrize("flags", [Move.RELAYOUT, Move.UP | Move.RELAYOUT], ids=["down", "up"])
def test_a_single_move_of_64_kib(make_world, shape, flags):
    world = world_of(make_world, *shape)
    assert world.layout.block_bytes == 64 << 10
    result, _ = world.run([move(0, 0, 4, flags, world.layout.block_tokens)])
    names = ("o_far_read", "o_device_write") if Move.UP in flags else ("o_device_read", "o_far_write")
    reads, writes = (result.flags[name] for name in names)
    cycles = writes.last_high_cycle - reads.first_high_cycle + 1
    assert round(100 * (64 << 10) // min(shape[1:]) / cycles, 1) == PERCENT[shape[0]]
    begin, end = (result.ports[name].first_cycle for name in ("i_descriptor", "o_completion"))
    assert end - begin == CYCLES[shape[0]]


@pytest.mark.parametrize(
    ("name", "device_bytes", "far_bytes"),
    [("hbm_pim", 32, (64, 32)), ("ddr_pim", 64, (32,)), ("ssd_pim", 32, (16,))],
)
def test_every_device_has_its_engine(name, device_bytes, far_bytes):
    """Elaborated whole with two paths or wide buses; what runs here is one path of each."""
    rtlil = to_rtlil(MigrationEngine(MoveShapes(PIM_LAYOUTS[name]), device_bytes, far_bytes))
    widths = re.findall(r"wire width (\d+) .*m_axi_far_write_\d+__wdata$", rtlil, re.MULTILINE)
    assert sorted(map(int, widths)) == sorted(8 * width for width in far_bytes)
