"""Block headers as numpy arrays: `spec.block_header.BlockHeader`, many at a time, with their CRCs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.crc import crc32c, crc32c_rows
from nearkv_hdl.spec.block_header import (
    CODE_FORMAT,
    FIRST_STREAM_WORD,
    HEADER_BYTES,
    HEADER_CRC_WORD,
    LAST_STREAM_WORD,
    MAGIC,
    StreamIdentity,
)
from nearkv_hdl.spec.layout import LAYOUT_VERSION, KeyBlockLayout

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

HEADER_DTYPE = np.dtype(
    [
        ("magic", "<u4"),
        ("layout_version", "<u2"),
        ("head_dim", "<u2"),
        ("model", "<u4"),
        ("sequence", "<u4"),
        ("layer", "<u2"),
        ("kv_head", "<u2"),
        ("block_tokens", "<u2"),
        ("code_format", "u1"),
        ("zero", "u1"),
        ("first_token", "<u4"),
        ("generation", "<u4"),
        ("plane_crc32c", "<u4", 2),  # high, low
        ("zeros", "<u4", 5),
        ("header_crc32c", "<u4"),
    ]
)
COVERED_BYTES = 4 * HEADER_CRC_WORD  # by the header's own CRC
STREAM_BYTES = slice(4 * FIRST_STREAM_WORD, 4 * (LAST_STREAM_WORD + 1))
IDENTITY_FIELDS = tuple(name for name in HEADER_DTYPE.names or () if not name.endswith("crc32c"))
assert HEADER_DTYPE.itemsize == HEADER_BYTES


def expected_headers(
    layout: KeyBlockLayout, identity: StreamIdentity, first_tokens: Int64, generations: Int64
) -> NDArray[np.void]:
    """Headers of a stream's blocks with all CRCs 0: HEADER_DTYPE [blocks].

    Args:
        layout: of each block.
        identity: the stream's.
        first_tokens, generations: int64 [blocks], 0 to 2^32 − 1.

    """
    headers = np.zeros(len(first_tokens), HEADER_DTYPE)
    headers["magic"], headers["layout_version"] = MAGIC, LAYOUT_VERSION
    headers["head_dim"], headers["block_tokens"] = layout.head_dim, layout.block_tokens
    headers["code_format"] = CODE_FORMAT
    headers["model"], headers["sequence"] = identity.model, identity.sequence
    headers["layer"], headers["kv_head"] = identity.layer, identity.kv_head
    headers["first_token"], headers["generation"] = first_tokens, generations
    return headers


def with_headers(
    planes: Bytes, layout: KeyBlockLayout, identity: StreamIdentity, first_tokens: Int64, generations: Int64
) -> Bytes:
    """Blocks as they lie in device memory: both planes, then the header.

    Args:
        planes: uint8 [blocks, block_bytes].
        layout, identity, first_tokens, generations: as of `expected_headers`.

    Returns:
        uint8 [blocks, block_bytes + HEADER_BYTES].

    """
    headers = expected_headers(layout, identity, first_tokens, generations)
    headers["plane_crc32c"] = crc32c_rows(planes.reshape(-1, layout.plane_bytes)).reshape(-1, 2)
    headers["header_crc32c"] = header_crcs(headers)
    return np.concatenate([planes, headers.view(np.uint8).reshape(-1, HEADER_BYTES)], axis=1)


def header_crcs(headers: NDArray[np.void]) -> NDArray[np.uint32]:
    """CRC32C that each of HEADER_DTYPE [blocks] should name as its own."""
    return crc32c_rows(headers.view(np.uint8).reshape(-1, HEADER_BYTES)[:, :COVERED_BYTES])


def stream_crc(identity: StreamIdentity) -> int:
    """CRC32C by which a job names the stream."""
    return crc32c(np.frombuffer(identity.pack(), np.uint8))


def stream_crcs(headers: NDArray[np.void]) -> NDArray[np.uint32]:
    """The same of the stream that each of HEADER_DTYPE [blocks] names."""
    return crc32c_rows(headers.view(np.uint8).reshape(-1, HEADER_BYTES)[:, STREAM_BYTES])
