"""Blocks in memory that are not what a job asks for, for the kernel's bench: damaged ones and other ones."""

from __future__ import annotations

import numpy as np

from nearkv.codec.block_header import HEADER_DTYPE, IDENTITY_FIELDS, header_crcs
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.benches.kernel_bad_jobs import Bend, argument, both, moved
from nearkv_sim.benches.kernel_jobs import Job


def _flipped(byte: int, bit: int) -> Bend:
    """One bit of the last block's planes; from their end if negative."""

    def bend(job: Job, _design: DesignConfig) -> None:
        job.keys[-1, :-HEADER_BYTES][byte] ^= 1 << bit
        _same_everywhere(job)

    return bend


def _flipped_header(byte: int, bit: int) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        job.keys[-1, -HEADER_BYTES:][byte] ^= 1 << bit
        _same_everywhere(job)

    return bend


def _relabelled(name: str, place: int = 0) -> Bend:
    """The last block's header with another value in a field, and with the CRC of that."""

    def bend(job: Job, _design: DesignConfig) -> None:
        header = job.keys[-1, -HEADER_BYTES:].copy().view(HEADER_DTYPE)
        header[name].reshape(-1)[place] ^= 1
        header["header_crc32c"] = header_crcs(header)
        job.keys[-1, -HEADER_BYTES:] = header.view(np.uint8)
        _same_everywhere(job)

    return bend


def _same_everywhere(job: Job) -> None:
    """A block that is listed more than once has one content."""
    for index, address in enumerate(job.key_addresses):
        if address == job.key_addresses[-1]:
            job.keys[index] = job.keys[-1]


def _all_int8(job: Job, _design: DesignConfig) -> None:
    job.descriptors["key_format"] = KeyFormat.INT8


_HEADER_BITS = tuple((byte, byte * 5 % 8) for byte in range(HEADER_BYTES))
# Found while scores are on their way.
DAMAGED: tuple[Bend, ...] = (
    _flipped(0, 0),
    _flipped(300, 5),
    both(_all_int8, _flipped(-1, 7)),
    both(_all_int8, both(_flipped(7, 1), _flipped(-1, 7))),
    *(_flipped_header(byte, bit) for byte, bit in _HEADER_BITS),
    *(_relabelled(name) for name in IDENTITY_FIELDS),
    _relabelled("zeros", 4),
    _relabelled("plane_crc32c"),
    both(_all_int8, _relabelled("plane_crc32c", 1)),
    argument(reg.STREAM_CRC32C, add=1),
    argument(reg.STREAM_CRC32C, add=1 << 31),
    moved(2, "generation", 1),
)
