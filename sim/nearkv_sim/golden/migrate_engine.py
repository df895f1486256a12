"""Golden model of the migration engine: descriptors on memory images, completions in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.migration import (
    BLOCK_ENTRY_BYTES,
    PARTS,
    BlockEntry,
    Move,
    MoveCode,
    Order,
    PimLayout,
)
from nearkv_sim.golden.migrate_layout import Bytes, from_tiles, reorder_tiles, to_tiles
from nearkv_sim.golden.migrate_rows import from_records, to_records

Block = tuple[int, int]  # sequence slot, logical block


@dataclass(frozen=True)
class MoveDescriptor:
    """One move, as the engine's `i_descriptor` carries it.

    Attributes:
        tag: of the completion.
        source, destination: blocks.
        tokens: to move, whole tiles.
        first_token: of the block.
        flags: what to do on the way.
        generation, destination_generation: of both entries; the second is not looked at by a difference-only
            move.

    """

    tag: int
    source: Block
    destination: Block
    tokens: int
    first_token: int = 0
    flags: Move = Move.COPY
    generation: int = 0
    destination_generation: int = 0


@dataclass(frozen=True)
class MoveCompletion:
    """How a move ended: bytes written, and the block whose entry failed or, otherwise, the destination."""

    tag: int
    code: MoveCode
    bytes: int
    block: Block


class MigrationModel:
    """Executes moves one after the other on memory images.

    Args:
        layout: of the device.
        table: uint8, entries of the block table, whole slots; read at every move.
        slot_blocks: blocks of a sequence slot in it.
        device, far: uint8 [bytes], both memories; moves change them. Their addresses begin at the bases.
        device_base, far_base: of the windows, as long as the images.

    Raises ValueError for an array of another kind, a fraction of a slot, and in `execute` for a block that
    the table has no entry of.

    """

    def __init__(
        self,
        layout: PimLayout,
        table: Bytes,
        slot_blocks: int,
        device: Bytes,
        far: Bytes,
        device_base: int = 0,
        far_base: int = 0,
    ) -> None:
        for name, image in (("device", device), ("far", far)):
            if image.dtype != np.uint8 or image.ndim != 1:
                raise ValueError(f"{name} is {image.dtype} {list(image.shape)}; allowed: uint8 [bytes]")
        slot_bytes = slot_blocks * BLOCK_ENTRY_BYTES
        if table.dtype != np.uint8 or slot_blocks < 1 or not table.size or table.size % slot_bytes:
            raise ValueError(
                f"table is {table.dtype} of {table.size} bytes with slot_blocks {slot_blocks}; allowed:"
                f" uint8, whole slots of {BLOCK_ENTRY_BYTES} bytes a block"
            )
        self.layout = layout
        self.slot_blocks = slot_blocks
        self._entries = table.reshape(-1, BLOCK_ENTRY_BYTES)
        self._memories = {True: (device, device_base), False: (far, far_base)}  # by "on the device"

    def execute(self, move: MoveDescriptor) -> MoveCompletion:
        """Move, or say why not."""
        layout, flags = self.layout, move.flags
        slots = len(self._entries) // self.slot_blocks
        for slot, block in (move.source, move.destination):
            if not (0 <= slot < slots and 0 <= block < self.slot_blocks):
                raise ValueError(
                    f"block is {(slot, block)}; allowed: slots below {slots}, blocks below {self.slot_blocks}"
                )
        up = Move.UP in flags
        if (
            move.tokens <= 0
            or move.tokens % layout.tile_tokens
            or move.first_token % layout.tile_tokens
            or move.first_token + move.tokens > layout.block_tokens
            or (Move.QUANTISE in flags and up)
            or (Move.EXPAND in flags and not up)
        ):
            return MoveCompletion(move.tag, MoveCode.REFUSED, 0, move.source)
        code, source, generation = self._translate(move.source, move.generation, on_device=not up)
        if code is not MoveCode.DONE:
            return MoveCompletion(move.tag, code, 0, move.source)
        difference = Move.DIFFERENCE in flags
        wanted = None if difference else move.destination_generation
        code, destination, generation = self._translate(move.destination, wanted, on_device=up)
        if code is MoveCode.DONE and difference and generation == move.generation:
            code = MoveCode.SKIPPED
        if code is not MoveCode.DONE:
            return MoveCompletion(move.tag, code, 0, move.destination)
        written = self._copy(move, source, destination)
        return MoveCompletion(move.tag, MoveCode.DONE, written, move.destination)

    def _translate(
        self, block: Block, generation: int | None, *, on_device: bool
    ) -> tuple[MoveCode, int, int]:
        """Code, offset in the image, generation."""
        entry = BlockEntry.unpack(self._entries[block[0] * self.slot_blocks + block[1]].tobytes())
        if entry is None:
            return MoveCode.ABSENT, 0, 0
        if generation is not None and entry.generation != generation:
            return MoveCode.STALE, 0, entry.generation
        image, base = self._memories[on_device]
        offset = entry.address - base
        if entry.address % self.layout.block_bytes or not 0 <= offset <= image.size - self.layout.block_bytes:
            return MoveCode.OUTSIDE, 0, entry.generation
        return MoveCode.DONE, offset, entry.generation

    def _copy(self, move: MoveDescriptor, source: int, destination: int) -> int:
        """Bytes written."""
        layout, flags = self.layout, move.flags
        up = Move.UP in flags
        tiles = np.arange(
            move.first_token // layout.tile_tokens, (move.first_token + move.tokens) // layout.tile_tokens
        )
        in_pim = Move.RELAYOUT in flags
        lossy = bool(flags & (Move.QUANTISE | Move.EXPAND))
        device, far = self._memories[True][0], self._memories[False][0]
        here, there = (
            self._places(tiles, block, pim=in_pim and pim, rows=in_pim or lossy, records=quantised in flags)
            for block, pim, quantised in ((source, not up, Move.EXPAND), (destination, up, Move.QUANTISE))
        )
        data = (far if up else device)[here]
        if Move.EXPAND in flags:
            rows = from_records(layout, data.reshape(len(tiles), -1))
            data = to_tiles(layout, rows).view(np.uint8).reshape(-1)
        orders = (Order.ROWS, Order.PIM) if up else (Order.PIM, Order.ROWS)
        data = reorder_tiles(layout, data, *(orders if in_pim else (Order.ROWS, Order.ROWS)))
        if Move.QUANTISE in flags:
            shape = (len(tiles), PARTS, layout.tile_tokens, layout.design.head_dim)
            rows = from_tiles(layout, data.view("<f2").astype(np.float16, copy=False).reshape(shape))
            data = to_records(layout, rows).reshape(-1)
        (device if up else far)[there] = data
        return int(data.size)

    def _places(
        self, tiles: NDArray[np.int64], block: int, *, pim: bool, rows: bool, records: bool
    ) -> NDArray[np.int64]:
        """Places in the image of all bytes of some tiles, in the order in which they pass."""
        layout = self.layout
        if pim:
            keys = block + tiles * layout.half_tile_bytes
            starts = np.stack([keys, keys + layout.value_offset_bytes], axis=1).reshape(-1)
            return (starts[:, None] + np.arange(layout.half_tile_bytes)).reshape(-1)
        size = layout.record_bytes if records else layout.tile_bytes
        places = block + tiles[:, None] * size + np.arange(size)
        if rows and not records:
            split = places.reshape(-1, layout.tile_tokens, PARTS, layout.row_bytes)
            return split.swapaxes(1, 2).reshape(-1)
        return places.reshape(-1)
