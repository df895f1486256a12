"""Allocation of device memory."""

from __future__ import annotations

from itertools import pairwise

from nearkv_hdl.spec.design import DesignConfig
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

    def has_room(self, nbytes: int, align_bytes: int) -> bool:
        """Whether that much can be handed out."""
        return self._aligned(align_bytes) + nbytes <= self._end

    def allocate(self, nbytes: int, align_bytes: int, purpose: str) -> int:
        """Address of `nbytes` new bytes.

        Raises ValueError, and hands out nothing, when they do not fit; the message names the purpose.
        """
        address = self._aligned(align_bytes)
        if not self.has_room(nbytes, align_bytes):
            raise ValueError(
                f"{purpose} needs {nbytes} bytes of device memory; {max(0, self._end - address)} are free"
            )
        self._next = address + nbytes
        return address

    def _aligned(self, align_bytes: int) -> int:
        return -(-self._next // align_bytes) * align_bytes


class BankAllocator:
    """Hands out device memory by bank, each from the bottom up; a design with one key master has one bank.

    A piece never lies in two banks.

    Args:
        base: first address.
        nbytes: size of the memory.
        design: whose banks.

    """

    def __init__(self, base: int, nbytes: int, design: DesignConfig) -> None:
        bank_bytes = design.key_bank_bytes or base + nbytes
        inner = range((base // bank_bytes + 1) * bank_bytes, base + nbytes, bank_bytes)
        self._banks = [
            (design.key_master(start), BumpAllocator(start, end - start))
            for start, end in pairwise([base, *inner, base + nbytes])
        ]

    @property
    def free_bytes(self) -> int:
        """Bytes not handed out of the bank that has most of them."""
        return max(bank.free_bytes for _, bank in self._banks)

    def allocate(self, nbytes: int, align_bytes: int, purpose: str, master: int | None = None) -> int:
        """Address of `nbytes` new bytes.

        They lie in the first bank of that key master that has room, or else in the first of any. Without a
        master it is the last bank that has room, so that what is no key takes least from them.
        Raises ValueError, and hands out nothing, when no bank has room; the message names the purpose.
        """
        if master is None:
            banks = [bank for _, bank in reversed(self._banks)]
        else:
            banks = [bank for _, bank in sorted(self._banks, key=lambda one: one[0] != master)]
        emptiest = max(banks, key=lambda bank: bank.free_bytes)
        chosen = next((bank for bank in banks if bank.has_room(nbytes, align_bytes)), emptiest)
        return chosen.allocate(nbytes, align_bytes, purpose)


class ScratchMemory:
    """Memory for one job at a time, which the next one reuses; grows at least twofold.

    Args:
        allocator: gives the memory.

    """

    def __init__(self, allocator: BankAllocator) -> None:
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
