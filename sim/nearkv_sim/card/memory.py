"""Sparse device memory that knows what was written, and when."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from nearkv.device.errors import DataError

Bytes = NDArray[np.uint8]
Int64 = NDArray[np.int64]

CHUNK_BYTES = 1 << 20
PAGE_BYTES = 4096  # granularity of generations: key blocks start on one
# One counter for every memory of the process: an address with a generation names contents, whoever asks.
_WRITES = count(1)


class UnwrittenMemory(DataError):
    """A read of bytes that nothing was ever written to; `address` is where the read began."""

    def __init__(self, address: int, nbytes: int) -> None:
        super().__init__(f"memory of {nbytes} bytes at {address:#x} was never written")
        self.address = address


class _Chunk:
    def __init__(self) -> None:
        # np.zeros maps pages lazily, so a chunk costs what was touched.
        self.data = np.zeros(CHUNK_BYTES, np.uint8)
        self.written = np.zeros(CHUNK_BYTES, np.bool_)
        self.generation = np.zeros(CHUNK_BYTES // PAGE_BYTES, np.int64)


class DeviceMemory:
    """Byte-addressed memory in [base, base + nbytes), allocated as it is written.

    Every method raises ValueError for a range that is empty or outside, and every read UnwrittenMemory if
    one byte of it was never written.

    Args:
        base: first address, a multiple of CHUNK_BYTES.
        nbytes: size, at least 1.

    """

    def __init__(self, base: int, nbytes: int) -> None:
        if base < 0 or base % CHUNK_BYTES:
            raise ValueError(f"memory_base is {base:#x}; allowed: a multiple of {CHUNK_BYTES:#x}")
        if nbytes < 1:
            raise ValueError(f"memory_bytes is {nbytes}; allowed: from 1")
        self.base = base
        self.end = base + nbytes
        self._chunks: dict[int, _Chunk] = {}

    def write(self, address: int, data: Bytes) -> None:
        """Store uint8 [nbytes]; ValueError for an array of another kind."""
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"data is {data.dtype} with shape {data.shape}; allowed: uint8 [nbytes]")
        generation = next(_WRITES)
        done = 0
        for index, start, stop in self._pieces(address, len(data)):
            if index not in self._chunks:
                self._chunks[index] = _Chunk()
            chunk = self._chunks[index]
            chunk.data[start:stop] = data[done : done + stop - start]
            chunk.written[start:stop] = True
            chunk.generation[start // PAGE_BYTES : (stop - 1) // PAGE_BYTES + 1] = generation
            done += stop - start

    def read(self, address: int, nbytes: int) -> Bytes:
        """Load uint8 [nbytes]: a view that the next write may change, or a copy."""
        pieces = []
        for index, start, stop in self._pieces(address, nbytes):
            chunk = self._chunks.get(index)
            if chunk is None or not chunk.written[start:stop].all():
                raise UnwrittenMemory(address, nbytes)
            pieces.append(chunk.data[start:stop])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Load rows of equal size, a new uint8 [rows, row_bytes]."""
        self.check_rows(addresses, row_bytes)
        rows = np.empty((len(addresses), row_bytes), np.uint8)
        index, start = np.divmod(addresses - self.base, CHUNK_BYTES)
        whole = start <= CHUNK_BYTES - row_bytes
        for i in np.unique(index[whole]):
            mine = np.flatnonzero(whole & (index == i))
            chunk = self._chunks.get(int(i))
            if chunk is None:
                raise UnwrittenMemory(int(addresses[mine[0]]), row_bytes)
            window = np.lib.stride_tricks.sliding_window_view
            written = window(chunk.written, row_bytes)[start[mine]].all(axis=1)
            if not written.all():
                raise UnwrittenMemory(int(addresses[mine][~written][0]), row_bytes)
            rows[mine] = window(chunk.data, row_bytes)[start[mine]]
        for row in np.flatnonzero(~whole):
            rows[row] = self.read(int(addresses[row]), row_bytes)
        return rows

    def generation(self, address: int, nbytes: int) -> int:
        """Number of the last write to the pages that hold these bytes; 0 if there was none."""
        newest = 0
        for index, start, stop in self._pieces(address, nbytes):
            if chunk := self._chunks.get(index):
                pages = chunk.generation[start // PAGE_BYTES : (stop - 1) // PAGE_BYTES + 1]
                newest = max(newest, int(pages.max()))
        return newest

    def _pieces(self, address: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
        """Chunk index, first byte and end within the chunk, for each chunk of the range."""
        self.check_range(address, nbytes)
        at, end = address - self.base, address - self.base + nbytes
        while at < end:
            index, start = divmod(at, CHUNK_BYTES)
            stop = min(CHUNK_BYTES, start + end - at)
            yield index, start, stop
            at += stop - start

    def check_range(self, address: int, nbytes: int) -> None:
        """Raise ValueError unless the range is in this memory."""
        if nbytes < 1 or address < self.base or address + nbytes > self.end:
            raise ValueError(
                f"range of {nbytes} bytes at {address:#x}; allowed: at least 1 byte within"
                f" {self.base:#x} to {self.end:#x}"
            )

    def check_rows(self, addresses: Int64, row_bytes: int) -> None:
        """Raise ValueError unless there are rows, and all of them in this memory."""
        if row_bytes < 1 or len(addresses) == 0:
            raise ValueError(f"gather of {len(addresses)} rows of {row_bytes} bytes; allowed: from 1 of each")
        outside = (addresses < self.base) | (addresses > self.end - row_bytes)
        if outside.any():
            self.check_range(int(addresses[outside][0]), row_bytes)
