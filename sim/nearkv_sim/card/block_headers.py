"""Headers of a job's blocks: what is wrong with one, and what a plane's CRC should be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.block_header import (
    HEADER_DTYPE,
    IDENTITY_FIELDS,
    expected_headers,
    header_crcs,
    stream_crcs,
)
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES, StreamIdentity
from nearkv_hdl.spec.layout import KeyBlockLayout
from nearkv_sim.card.memory import DeviceMemory
from nearkv_sim.card.register_file import RegisterFile

Bools = NDArray[np.bool_]
Int64 = NDArray[np.int64]
_OF_STREAM = ("model", "sequence", "layer", "kv_head")  # which a job names by their CRC


def read_headers(
    registers: RegisterFile,
    memory: DeviceMemory,
    layout: KeyBlockLayout,
    addresses: Int64,
    descriptors: NDArray[np.void],
) -> tuple[NDArray[np.void], Bools, Bools]:
    """Read and judge the headers of a job's blocks.

    Args:
        registers: the job's arguments.
        memory: where the headers lie.
        layout: of the job's blocks.
        addresses: int64 [blocks], of headers within the memory.
        descriptors: what the headers must say.

    Returns:
        HEADER_DTYPE [blocks]; bool [blocks], which are damaged; bool [blocks], which are of something else.

    Raises UnwrittenMemory.

    """
    headers = memory.gather(addresses, HEADER_BYTES).reshape(-1).view(HEADER_DTYPE)
    first_tokens, generations = (descriptors[name].astype(np.int64) for name in ("first_token", "generation"))
    expected = expected_headers(layout, StreamIdentity(), first_tokens, generations)
    differs = stream_crcs(headers) != registers[reg.STREAM_CRC32C]
    for name in IDENTITY_FIELDS:
        if name not in _OF_STREAM:
            differs |= (headers[name] != expected[name]).reshape(len(headers), -1).any(axis=1)
    return headers, headers["header_crc32c"] != header_crcs(headers), differs
