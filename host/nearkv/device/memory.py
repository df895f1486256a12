"""Allocation of device memory."""

from __future__ import annotations

from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES


class BumpAllocator:
    """Hands out device memory from the bottom up; nothing is given back.

    The cold tier is inclusive and a run's streams live as long as its device, so nothing needs freeing yet.

    Args:
        base: first address.
        nbytes: size of the memory.

    """

    def __init__(self, base: int, nbytes: int) -> None:
        self._next = base
        self._end = base + nbytes

    @property
    def free_bytes(self) -> int:
        """Bytes not handed out."""
        return self._end - self._next

    def allocate(self, nbytes: int, align_bytes: int, purpose: str) -> int:
        """Address of `nbytes` new bytes.

        Raises ValueError, and hands out nothing, when they do not fit; the message names the purpose.
        """
        address = -(-self._next // align_bytes) * align_bytes
        if address + nbytes > self._end:
            raise ValueError(
                f"{purpose} needs {nbytes} bytes of device memory; {max(0, self._end - address)} are free"
            )
        self._next = address + nbytes
        return address


class ScratchMemory:
    """Memory for one job at a time, which the next one reuses; grows at least twofold.

    Args:
        allocator: gives the memory.

    """

    def __init__(self, allocator: BumpAllocator) -> None:
        self._allocator = allocator
        self._address = 0
        self._nbytes = 0

    def address(self, nbytes: int) -> int:
        """Address of that much memory; ValueError if there is none left."""
        if nbytes > self._nbytes:
            wanted = max(nbytes, 2 * self._nbytes)
            # Near the end of memory exactly what is needed may still fit.
            size = wanted if wanted + BLOCK_ALIGN_BYTES <= self._allocator.free_bytes else nbytes
            self._address = self._allocator.allocate(size, BLOCK_ALIGN_BYTES, "a scoring job")
            self._nbytes = size
        return self._address
