"""A card's memory as one XRT buffer object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nearkv.device.transport import Bytes, Int64

BUFFER_ALIGN_BYTES = 4096
# A buffer object must stay below 4 GB (AMD UG1393, "Buffer Creation and Data Transfer").
MAX_BUFFER_BYTES = (1 << 32) - BUFFER_ALIGN_BYTES
# Transfers are widened to beats of a 512-bit memory port, so that no DMA engine has to merge bytes.
SYNC_ALIGN_BYTES = 64


class PyxrtMemory:
    """Reads and writes of any range in terms of aligned transfers.

    XRT mirrors a buffer object in host memory: its `write` and `read` copy to and from the mirror, `sync`
    moves a range between mirror and card.

    Every method raises ValueError for a range that is empty or outside, and XRT's own exceptions.

    Args:
        module: the module `pyxrt`.
        device: an open `pyxrt.device`.
        group: memory group, from `kernel.group_id`.
        nbytes: size, a multiple of BUFFER_ALIGN_BYTES up to MAX_BUFFER_BYTES.

    Attributes:
        base: device address of the first byte.
        bytes_to_device, bytes_from_device: moved by `sync` so far.

    Raises ValueError for another size.

    """

    def __init__(self, module: Any, device: Any, group: int, nbytes: int) -> None:
        check_memory_bytes(nbytes)
        self._buffer: Any = module.bo(device, nbytes, module.bo.flags.normal, group)
        self._to_device = module.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self._from_device = module.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        self.base: int = self._buffer.address()
        self.nbytes = nbytes
        self.bytes_to_device = 0
        self.bytes_from_device = 0

    def write(self, address: int, data: Bytes) -> None:
        """Copy uint8 [nbytes] to the card; ValueError for an array of another kind."""
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"data is {data.dtype} with shape {data.shape}; allowed: uint8 [nbytes]")
        start = self._offset(address, len(data))
        end = start + len(data)
        low, high = outward(start, end)
        # The card may have written around a ragged end since the mirror last saw it.
        ragged = {low} if low < start else set()
        if end < high:
            ragged.add(high - SYNC_ALIGN_BYTES)
        for edge in sorted(ragged):
            self._fetch(edge, edge + SYNC_ALIGN_BYTES)
        self._buffer.write(np.ascontiguousarray(data), start)
        self._buffer.sync(self._to_device, high - low, low)
        self.bytes_to_device += high - low

    def read(self, address: int, nbytes: int) -> Bytes:
        """Copy from the card: a new uint8 [nbytes]."""
        start = self._offset(address, nbytes)
        self._fetch(*outward(start, start + nbytes))
        return self._copy(start, nbytes)

    def gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Copy rows of one size, a new uint8 [rows, row_bytes]; neighbours take one transfer."""
        if row_bytes < 1 or len(addresses) == 0:
            raise ValueError(f"gather of {len(addresses)} rows of {row_bytes} bytes; allowed: from 1 of each")
        starts = np.array([self._offset(int(address), row_bytes) for address in addresses], np.int64)
        for low, high in runs(starts, row_bytes):
            self._fetch(low, high)
        return np.stack([self._copy(start, row_bytes) for start in starts.tolist()])

    def release(self) -> None:
        """Let XRT free the buffer object; no other method may follow."""
        self._buffer = None

    def _fetch(self, low: int, high: int) -> None:
        self._buffer.sync(self._from_device, high - low, low)
        self.bytes_from_device += high - low

    def _copy(self, start: int, nbytes: int) -> Bytes:
        """Copy from the mirror; pyxrt gives an array of C's char."""
        return np.asarray(self._buffer.read(nbytes, start)).view(np.uint8).copy()

    def _offset(self, address: int, nbytes: int) -> int:
        end = self.base + self.nbytes
        if nbytes < 1 or address < self.base or address + nbytes > end:
            raise ValueError(
                f"range of {nbytes} bytes at {address:#x}; allowed: at least 1 byte within"
                f" {self.base:#x} to {end:#x}"
            )
        return address - self.base


def check_memory_bytes(nbytes: int) -> None:
    """Raise ValueError unless a buffer object may have that size."""
    if not 0 < nbytes <= MAX_BUFFER_BYTES or nbytes % BUFFER_ALIGN_BYTES:
        raise ValueError(
            f"memory_bytes is {nbytes}; allowed: multiples of {BUFFER_ALIGN_BYTES} up to {MAX_BUFFER_BYTES}"
        )


def outward(start: int, end: int) -> tuple[int, int]:
    """The smallest aligned range that holds [start, end)."""
    return start // SYNC_ALIGN_BYTES * SYNC_ALIGN_BYTES, -(-end // SYNC_ALIGN_BYTES) * SYNC_ALIGN_BYTES


def runs(starts: Int64, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Aligned ranges, ascending and apart, that together hold rows of `row_bytes` from each of `starts`.

    Args:
        starts: int64 [rows], at least one, in any order.
        row_bytes: bytes of each row.

    """
    ordered = np.unique(starts)
    low = ordered // SYNC_ALIGN_BYTES * SYNC_ALIGN_BYTES
    high = -(-(ordered + row_bytes) // SYNC_ALIGN_BYTES) * SYNC_ALIGN_BYTES
    # All rows have one size, so that the ends ascend with the starts.
    first = np.flatnonzero(np.concatenate([[True], low[1:] > high[:-1]]))
    last = np.concatenate([first[1:], [len(ordered)]]) - 1
    yield from zip(low[first].tolist(), high[last].tolist(), strict=True)
