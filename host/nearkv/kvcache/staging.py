"""Staging buffers: where a move's records lie between source and target."""

from __future__ import annotations

from nearkv.kvcache.rows import Records, empty_records


class StagingBuffers:
    """A few buffers of equal size. A move owns one from its read to its end, so that none is overwritten
    before the transfer out of it is complete.

    Raises ValueError for fewer than one buffer or row.
    """

    def __init__(self, count: int, rows: int, record_bytes: int) -> None:
        if count < 1 or rows < 1:
            raise ValueError(f"staging is {count} buffers of {rows} rows; allowed: from 1 of each")
        self.count, self.rows, self.record_bytes = count, rows, record_bytes
        self._buffers = [empty_records(rows, record_bytes) for _ in range(count)]
        self._free = list(range(count))[::-1]

    @property
    def free(self) -> int:
        """Buffers that no move owns."""
        return len(self._free)

    def take(self) -> int:
        """Own a buffer; IndexError without a free one."""
        return self._free.pop()

    def release(self, buffer: int) -> None:
        """Give a buffer back."""
        self._free.append(buffer)

    def fill(self, buffer: int, records: Records) -> None:
        """Overwrite the first len(records) rows."""
        self._buffers[buffer].copy_from(slice(0, len(records)), records)

    def read(self, buffer: int, count: int) -> Records:
        """The first `count` rows, as they are now."""
        return self._buffers[buffer][slice(0, count)]
