"""Golden model of re-layout: whole blocks and streams of tiles between row-major and PIM order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.layout import FP16_BYTES
from nearkv_hdl.spec.migration import PARTS, Order, PimLayout

Bytes = NDArray[np.uint8]


def to_pim(layout: PimLayout, rows: NDArray[np.float16]) -> Bytes:
    """Lay blocks out for a PIM device.

    Args:
        layout: of the device.
        rows: float16 [tokens, K|V, head_dim], whole blocks.

    Returns:
        uint8 [blocks, block_bytes]. ValueError for another shape or dtype, or a fraction of a block.

    """
    head_dim = layout.design.head_dim
    if rows.dtype != np.float16 or rows.ndim != 3 or rows.shape[1:] != (PARTS, head_dim):
        raise ValueError(
            f"rows are {rows.dtype} {list(rows.shape)}; allowed: float16 [tokens, {PARTS}, {head_dim}]"
        )
    if len(rows) % layout.block_tokens:
        raise ValueError(f"rows hold {len(rows)} tokens; allowed: whole blocks of {layout.block_tokens}")
    data = np.ascontiguousarray(rows, "<f2").view(np.uint8)
    split = data.reshape(
        -1, layout.block_tiles, layout.tile_tokens, PARTS, layout.row_columns, layout.column_bytes
    )
    return split.transpose(0, 3, 1, 4, 2, 5).reshape(-1, layout.block_bytes)


def from_pim(layout: PimLayout, blocks: Bytes) -> NDArray[np.float16]:
    """Inverse of `to_pim`; ValueError for another shape or dtype."""
    if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] != layout.block_bytes:
        raise ValueError(
            f"blocks are {blocks.dtype} {list(blocks.shape)}; allowed: uint8 [blocks, {layout.block_bytes}]"
        )
    split = blocks.reshape(
        -1, PARTS, layout.block_tiles, layout.row_columns, layout.tile_tokens, layout.column_bytes
    )
    data = np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3, 5))
    return data.view("<f2").reshape(-1, PARTS, layout.row_bytes // FP16_BYTES).astype(np.float16, copy=False)


def to_tiles(layout: PimLayout, rows: NDArray[np.float16]) -> NDArray[np.float16]:
    """Rows in the order in which they pass: keys of a tile, then its values.

    Args:
        layout: gives the tile.
        rows: float16 [tokens, K|V, head_dim], whole tiles.

    Returns:
        float16 [tiles, K|V, token of the tile, head_dim]. ValueError for a fraction of a tile.

    """
    if len(rows) % layout.tile_tokens:
        raise ValueError(f"rows hold {len(rows)} tokens; allowed: whole tiles of {layout.tile_tokens}")
    tiles = rows.reshape(-1, layout.tile_tokens, PARTS, layout.design.head_dim).swapaxes(1, 2)
    return np.ascontiguousarray(tiles)


def from_tiles(layout: PimLayout, tiles: NDArray[np.float16]) -> NDArray[np.float16]:
    """Inverse of `to_tiles`."""
    rows = np.ascontiguousarray(tiles.swapaxes(1, 2))
    return rows.reshape(-1, PARTS, layout.design.head_dim)


def reorder_tiles(layout: PimLayout, data: Bytes, source: Order, destination: Order) -> Bytes:
    """What Relayout makes of a stream: every tile for itself, from one order to another.

    Args:
        layout: of the device.
        data: uint8 [tiles · tile_bytes] in order `source`.
        source, destination: orders.

    Returns:
        uint8, as many bytes, in order `destination`. ValueError for a fraction of a tile.

    """
    if data.size % layout.tile_bytes:
        raise ValueError(f"data hold {data.size} bytes; allowed: whole tiles of {layout.tile_bytes}")
    if source == destination:
        return data.copy()
    tokens, columns, nbytes = layout.tile_tokens, layout.row_columns, layout.column_bytes
    rows, pim = (-1, tokens, columns, nbytes), (-1, columns, tokens, nbytes)  # of half tiles
    return data.reshape(rows if source is Order.ROWS else pim).swapaxes(1, 2).reshape(-1)
