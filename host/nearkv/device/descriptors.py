"""Whole descriptor lists as numpy arrays: `spec.layout.BlockDescriptor`, many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.query import FoldedQuery
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, MAX_QUERY_GROUP, SHIFT_BITS, query_code_bytes

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

DESCRIPTOR_DTYPE = np.dtype(
    [
        ("key_address", "<u8"),
        ("first_token", "<u4"),
        ("head_dim", "<u2"),
        ("key_format", "u1"),
        ("heads", "u1"),
        ("query_address", "<u8"),
        ("bias", "<i4", MAX_QUERY_GROUP),
        ("shifts", "<u4"),
        ("generation", "<u4"),
    ]
)
assert DESCRIPTOR_DTYPE.itemsize == DESCRIPTOR_BYTES
_SHIFT_AT = SHIFT_BITS * np.arange(MAX_QUERY_GROUP)


@dataclass(frozen=True)
class StoredBlocks:
    """Key blocks of one stream in device memory, in the order in which a job scores them.

    Attributes:
        identity: the stream's, as their headers have it.
        key_addresses: int64 [blocks].
        first_tokens: int64 [blocks], token index of each block's first token.
        generations: int64 [blocks], as their headers have them.

    """

    identity: StreamIdentity
    key_addresses: Int64
    first_tokens: Int64
    generations: Int64

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.key_addresses)

    def __getitem__(self, blocks: slice | NDArray[np.integer]) -> StoredBlocks:
        """Some of the blocks."""
        return StoredBlocks(
            self.identity, self.key_addresses[blocks], self.first_tokens[blocks], self.generations[blocks]
        )

    def append(self, other: StoredBlocks) -> StoredBlocks:
        """These blocks, then the other's of the same stream."""
        return StoredBlocks(
            self.identity,
            np.concatenate([self.key_addresses, other.key_addresses]),
            np.concatenate([self.first_tokens, other.first_tokens]),
            np.concatenate([self.generations, other.generations]),
        )


def pack_shifts(shift: NDArray[np.integer]) -> NDArray[np.uint32]:
    """A descriptor's field of shifts from integers [blocks, heads], each 0 to 15."""
    packed: NDArray[np.uint32] = (shift << _SHIFT_AT[: shift.shape[1]]).sum(axis=1).astype(np.uint32)
    return packed


def unpack_shifts(shifts: NDArray[np.uint32], heads: int) -> Int64:
    """Shifts int64 [blocks, heads] of that field."""
    unpacked: Int64 = shifts.astype(np.int64)[:, None] >> _SHIFT_AT[:heads] & (1 << SHIFT_BITS) - 1
    return unpacked


def query_code_dtype(query_bits: int) -> np.dtype[Any]:
    """How one folded code is stored: a byte, or 16 bits little-endian for formats above 8 bits."""
    return np.dtype(f"<i{query_code_bytes(query_bits)}")


def job_image(base: int, stored: StoredBlocks, folded: FoldedQuery, heads: slice, query_bits: int) -> Bytes:
    """One job's descriptor list with its folded codes behind it, as it lies at device address `base`.

    Args:
        base: where the image will be written.
        stored: the blocks.
        folded: codes, shifts and biases of those blocks.
        heads: the query heads of this job.
        query_bits: width of a folded code.

    Returns:
        uint8 [blocks · (DESCRIPTOR_BYTES + heads · head_dim · bytes of a code)].

    """
    codes = folded.codes[:, heads].astype(query_code_dtype(query_bits))
    blocks, count, head_dim = codes.shape
    codes_of_block_bytes = count * head_dim * codes.itemsize
    descriptors = np.zeros(blocks, DESCRIPTOR_DTYPE)
    descriptors["key_address"] = stored.key_addresses
    descriptors["first_token"] = stored.first_tokens
    descriptors["head_dim"] = head_dim
    descriptors["key_format"] = folded.key_format
    descriptors["heads"] = count
    descriptors["query_address"] = base + blocks * DESCRIPTOR_BYTES + codes_of_block_bytes * np.arange(blocks)
    descriptors["bias"][:, :count] = folded.bias[:, heads]
    descriptors["shifts"] = pack_shifts(folded.shift[:, heads])
    descriptors["generation"] = stored.generations
    return np.concatenate(
        [descriptors.view(np.uint8), np.ascontiguousarray(codes).view(np.uint8).reshape(-1)]
    )
