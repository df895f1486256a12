"""Whole descriptor lists as numpy arrays: `spec.layout.BlockDescriptor`, many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.query import FoldedQuery
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, MAX_QUERY_GROUP, query_code_bytes

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
        ("shift", "u1", MAX_QUERY_GROUP),
    ]
)
assert DESCRIPTOR_DTYPE.itemsize == DESCRIPTOR_BYTES


def query_code_dtype(query_bits: int) -> np.dtype[Any]:
    """How one folded code is stored: a byte, or 16 bits little-endian for formats above 8 bits."""
    return np.dtype(f"<i{query_code_bytes(query_bits)}")


def job_image(
    base: int, key_addresses: Int64, first_tokens: Int64, folded: FoldedQuery, heads: slice, query_bits: int
) -> Bytes:
    """One job's descriptor list with its folded codes behind it, as it lies at device address `base`.

    Args:
        base: where the image will be written.
        key_addresses: int64 [blocks].
        first_tokens: int64 [blocks].
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
    descriptors["key_address"] = key_addresses
    descriptors["first_token"] = first_tokens
    descriptors["head_dim"] = head_dim
    descriptors["key_format"] = folded.key_format
    descriptors["heads"] = count
    descriptors["query_address"] = base + blocks * DESCRIPTOR_BYTES + codes_of_block_bytes * np.arange(blocks)
    descriptors["bias"][:, :count] = folded.bias[:, heads]
    descriptors["shift"][:, :count] = folded.shift[:, heads]
    return np.concatenate(
        [descriptors.view(np.uint8), np.ascontiguousarray(codes).view(np.uint8).reshape(-1)]
    )
