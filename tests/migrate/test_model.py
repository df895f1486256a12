"""Golden model of the engine against conversions of whole blocks, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv_hdl.spec.migration import BlockEntry, Move, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.golden.migrate_engine import MigrationModel, MoveCompletion, MoveDescriptor
from nearkv_sim.golden.migrate_layout import to_pim
from nearkv_sim.golden.migrate_rows import from_records, quantise_rows, to_records

LAYOUT = PIM_LAYOUTS["tiny_pim"]
BLOCK, TILE_TOKENS = LAYOUT.block_bytes, LAYOUT.tile_tokens
DEVICE, FAR = 0, 1  # sequence slots
BASE = 1 << 20  # of the far memory
HALF = LAYOUT.block_tokens // 2


@pytest.fixture
def rows():
    """Of one block, float16."""
    return np.random.default_rng(4).normal(size=(LAYOUT.block_tokens, 2, 16)).astype(np.float16)


def model_of(device=(), far=(), blocks=2):
    """Memories of so many blocks; block n at place n, generation n. Those given lie at place 0."""
    images = []
    for first in (device, far):
        image = np.zeros(blocks * BLOCK, np.uint8)
        data = np.asarray(first).reshape(-1).view(np.uint8) if len(first) else image[:0]
        image[: data.size] = data
        images.append(image)
    table = np.zeros((2, blocks, 16), np.uint8)
    for slot, base in ((DEVICE, 0), (FAR, BASE)):
        for block in range(blocks):
            table[slot, block] = np.frombuffer(BlockEntry(base + block * BLOCK, block).pack(), np.uint8)
    return MigrationModel(LAYOUT, table, blocks, *images, 0, BASE), *images


def move(flags, tokens=LAYOUT.block_tokens, first_token=0):
    """Block 0 of one side to block 1 of the other."""
    slots = (FAR, DEVICE) if Move.UP in flags else (DEVICE, FAR)
    return MoveDescriptor(9, (slots[0], 0), (slots[1], 1), tokens, first_token, flags, 0, 1)


def test_up_a_whole_block_is_laid_out_for_the_device(rows):
    model, device, far = model_of(far=rows)
    before = far.copy()
    assert model.execute(move(Move.UP | Move.RELAYOUT)) == MoveCompletion(
        9, MoveCode.DONE, BLOCK, (DEVICE, 1)
    )
    assert np.array_equal(device[BLOCK:], to_pim(LAYOUT, rows)[0])
    assert not device[:BLOCK].any()
    assert np.array_equal(far, before)


def test_down_a_part_lands_at_its_tokens_and_nowhere_else(rows):
    model, _, far = model_of(device=to_pim(LAYOUT, rows))
    model.execute(move(Move.RELAYOUT, tokens=TILE_TOKENS, first_token=HALF))
    expected = np.zeros_like(rows)
    expected[HALF : HALF + TILE_TOKENS] = rows[HALF : HALF + TILE_TOKENS]
    assert np.array_equal(far[BLOCK:], expected.view(np.uint8).reshape(-1))
    assert not far[:BLOCK].any()


def test_up_a_part_leaves_the_rest_of_the_block(rows):
    model, device, _ = model_of(far=rows)
    model.execute(move(Move.UP | Move.RELAYOUT, tokens=TILE_TOKENS, first_token=HALF))
    for token in range(LAYOUT.block_tokens):
        for part in (0, 1):
            places = [BLOCK + LAYOUT.pim_offset(token, part, byte) for byte in range(LAYOUT.row_bytes)]
            moved = HALF <= token < HALF + TILE_TOKENS
            assert np.array_equal(device[places], rows[token, part].view(np.uint8) if moved else np.zeros(32))


def test_quantised_it_comes_back_within_half_a_step(rows):
    model, _, far = model_of(device=to_pim(LAYOUT, rows))
    records = to_records(LAYOUT, rows)
    done = model.execute(move(Move.RELAYOUT | Move.QUANTISE))
    assert done.bytes == records.size
    assert np.array_equal(far[BLOCK : BLOCK + records.size], records.reshape(-1))
    assert not far[BLOCK + records.size :].any()
    model, device, _ = model_of(far=records)
    assert model.execute(move(Move.UP | Move.RELAYOUT | Move.EXPAND)).bytes == BLOCK
    assert np.array_equal(device[BLOCK:], to_pim(LAYOUT, from_records(LAYOUT, records))[0])
    _, scales = quantise_rows(rows)
    step = scales.astype(np.float64)[..., None]
    error = from_records(LAYOUT, records).astype(np.float64) - rows.astype(np.float64)
    # Half a step, and the rounding of the product to FP16: half of 2^-10 of at most 127 steps.
    assert (np.abs(error) <= step * (0.5 + 127 * 2**-11)).all()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda model: model.execute(MoveDescriptor(0, (0, 2), (1, 0), 4)),
            r"block is \(0, 2\); allowed: slots",
        ),
        (
            lambda model: model.execute(MoveDescriptor(0, (0, 0), (2, 0), 4)),
            r"block is \(2, 0\); allowed: slots",
        ),
        (lambda model: model.execute(MoveDescriptor(0, (0, 0), (1, -1), 4)), r"block is \(1, -1\)"),
        (
            lambda _: MigrationModel(LAYOUT, np.zeros(48, np.uint8), 2, *np.zeros((2, BLOCK), np.uint8)),
            r"table is uint8 of 48 bytes with slot_blocks 2; allowed: uint8, whole slots",
        ),
        (
            lambda _: MigrationModel(LAYOUT, np.zeros(32, np.uint8), 2, *np.zeros((2, BLOCK), np.int8)),
            r"device is int8 \[1024\]; allowed: uint8 \[bytes\]",
        ),
    ],
)
def test_bad_arguments_are_refused(use, message):
    with pytest.raises(ValueError, match=message):
        use(model_of()[0])
