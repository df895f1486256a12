"""Key-block quantiser and nibble planes.

A key block holds `block_tokens` consecutive FP16 key rows of one (sequence, layer, kv head), quantised per
channel with a centre and a scale of its own: k[t, i] ≈ centre[i] + scale[i]·(code[t, i] + ½).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.formats import CODE, CODE_HIGH_NIBBLE
from nearkv_hdl.spec.layout import BLOCK_TOKENS, KeyBlockLayout, KeyFormat

Float16 = NDArray[np.float16]
Int8 = NDArray[np.int8]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class BlockHeaders:
    """What folding needs to know of a batch of key blocks.

    Attributes:
        layout: head_dim and tokens of each block.
        centre: float16 [blocks, head_dim].
        scale: float16 [blocks, head_dim], 0 where every token has exactly the centre.
        mean_code: int8 [blocks, head_dim], the channel's mean code rounded half up.

    """

    layout: KeyBlockLayout
    centre: Float16
    scale: Float16
    mean_code: Int8

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.centre)

    def __getitem__(self, blocks: slice | NDArray[np.integer]) -> BlockHeaders:
        """The headers of some blocks."""
        return BlockHeaders(self.layout, self.centre[blocks], self.scale[blocks], self.mean_code[blocks])

    def append(self, other: BlockHeaders) -> BlockHeaders:
        """These headers, then the other's of the same layout."""
        return BlockHeaders(
            self.layout,
            np.concatenate([self.centre, other.centre]),
            np.concatenate([self.scale, other.scale]),
            np.concatenate([self.mean_code, other.mean_code]),
        )


def no_headers(layout: KeyBlockLayout) -> BlockHeaders:
    """The headers of no block."""
    empty = np.empty((0, layout.head_dim), np.float16)
    return BlockHeaders(layout, empty, empty, np.empty((0, layout.head_dim), np.int8))


@dataclass(frozen=True)
class KeyBlocks:
    """A batch of quantised key blocks.

    Attributes:
        headers: one per block.
        codes: int8 [blocks, block_tokens, head_dim].

    """

    headers: BlockHeaders
    codes: Int8

    @property
    def layout(self) -> KeyBlockLayout:
        """head_dim and tokens of each block."""
        return self.headers.layout

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.codes)

    def __getitem__(self, blocks: slice | NDArray[np.integer]) -> KeyBlocks:
        """Some of the blocks."""
        return KeyBlocks(self.headers[blocks], self.codes[blocks])


def check_fp16_rows(rows: NDArray[np.generic], what: str, head_dim: int | None = None) -> None:
    """Raise ValueError unless `rows` is a finite float16 matrix [tokens, head_dim]."""
    if rows.dtype != np.float16 or rows.ndim != 2:
        raise ValueError(
            f"{what} is {rows.dtype} with shape {rows.shape}; allowed: float16 [tokens, head_dim]"
        )
    if head_dim is not None and rows.shape[1] != head_dim:
        raise ValueError(f"{what} has head_dim {rows.shape[1]}; allowed: {head_dim}")
    finite = np.isfinite(rows)
    if not finite.all():
        token, channel = np.argwhere(~finite)[0]
        raise ValueError(
            f"{what} is {rows[token, channel]} at token {token}, channel {channel}; allowed: finite values"
        )


def quantise_keys(keys: Float16, block_tokens: int = BLOCK_TOKENS) -> KeyBlocks:
    """Quantise FP16 key rows into key blocks.

    Args:
        keys: float16 [tokens, head_dim]; tokens a multiple of block_tokens, head_dim 64, 128 or 256.
        block_tokens: tokens of a block.

    The stored centre is the FP16 nearest to the middle of the channel's range, and the scale is
    max|k − centre| / 128 rounded up to FP16, so that code = floor((k − centre) / scale) leaves the 8-bit
    range only at the top endpoint, which clamps to 127. Everything is exact: differences of FP16 numbers
    fit float64, and a quotient of theirs is never rounded across an integer.

    Raises:
        ValueError: another dtype or shape, a NaN or infinity, a partial block.

    """
    check_fp16_rows(keys, "keys")
    tokens, head_dim = keys.shape
    layout = KeyBlockLayout(head_dim, block_tokens)
    if tokens == 0 or tokens % block_tokens:
        raise ValueError(f"keys has {tokens} tokens; allowed: a positive multiple of {block_tokens}")
    rows = keys.astype(np.float64).reshape(-1, block_tokens, head_dim)
    low, high = rows.min(axis=1), rows.max(axis=1)
    centre = ((low + high) / 2).astype(np.float16)
    stored_centre = centre.astype(np.float64)
    reach = np.maximum(high - stored_centre, stored_centre - low)
    scale = _round_up_to_fp16(reach / (-CODE.min))
    step = scale.astype(np.float64)[:, None, :]
    offset = rows - stored_centre[:, None, :]
    quotient = np.divide(offset, step, out=np.zeros_like(offset), where=step > 0)
    codes = np.clip(np.floor(quotient), CODE.min, CODE.max).astype(np.int8)
    sums = codes.sum(axis=1, dtype=np.int64)
    mean_code = ((2 * sums + block_tokens) // (2 * block_tokens)).astype(np.int8)
    return KeyBlocks(BlockHeaders(layout, centre, scale, mean_code), codes)


def _round_up_to_fp16(values: NDArray[np.float64]) -> Float16:
    """Smallest FP16 numbers not below `values` (finite, non-negative)."""
    nearest = values.astype(np.float16)
    too_small = nearest.astype(np.float64) < values
    return np.where(too_small, np.nextafter(nearest, np.float16(np.inf)), nearest)


def dequantise_keys(blocks: KeyBlocks, key_format: KeyFormat = KeyFormat.INT8) -> NDArray[np.float64]:
    """Reconstruct key rows, float64 [tokens, head_dim]; INT4 sees the high nibble alone."""
    codes = blocks.codes.astype(np.float64)
    centred = codes + 0.5 if key_format is KeyFormat.INT8 else 16.0 * np.floor(codes / 16.0) + 8.0
    headers = blocks.headers
    centre, scale = (table.astype(np.float64)[:, None, :] for table in (headers.centre, headers.scale))
    rows: NDArray[np.float64] = (centre + scale * centred).reshape(-1, blocks.layout.head_dim)
    return rows


def split_planes(codes: Int8) -> tuple[Bytes, Bytes]:
    """Split codes int8 [..., tokens, head_dim] into (high, low) planes uint8 [..., plane_bytes]."""
    whole: Bytes = codes.view(np.uint8).reshape(*codes.shape[:-2], -1)
    even, odd = whole[..., 0::2], whole[..., 1::2]
    four, low_mask, high_mask = np.uint8(4), np.uint8(0x0F), np.uint8(0xF0)
    high: Bytes = (even >> four) | (odd & high_mask)
    low: Bytes = (even & low_mask) | (odd << four)
    return high, low


def unpack_nibbles(plane: Bytes) -> Bytes:
    """Nibbles uint8 [..., 2·plane_bytes] of a plane uint8 [..., plane_bytes]; even nibbles are bits 3:0."""
    nibbles = np.empty((*plane.shape[:-1], 2 * plane.shape[-1]), np.uint8)
    nibbles[..., 0::2] = plane & 0xF
    nibbles[..., 1::2] = plane >> 4
    return nibbles


def join_planes(high: Bytes, low: Bytes | None, layout: KeyBlockLayout) -> Int8:
    """Codes int8 [..., block_tokens, head_dim] of planes uint8 [..., plane_bytes].

    Without the low plane (INT4) a code is 16 · high nibble. ValueError on a plane of another size.
    """
    for name, plane in (("high plane", high), ("low plane", low)):
        if plane is not None and plane.shape[-1] != layout.plane_bytes:
            raise ValueError(f"{name} has {plane.shape[-1]} bytes; allowed: {layout.plane_bytes}")
    codes: Bytes = unpack_nibbles(high) << np.uint8(CODE_HIGH_NIBBLE.width)
    if low is not None:
        codes |= unpack_nibbles(low)
    signed: Int8 = codes.view(np.int8).reshape(*high.shape[:-1], layout.block_tokens, layout.head_dim)
    return signed


def pack_blocks(blocks: KeyBlocks) -> Bytes:
    """Blocks as stored: uint8 [blocks, block_bytes], high plane then low plane."""
    return np.concatenate(split_planes(blocks.codes), axis=-1)
