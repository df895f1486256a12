"""Allocation of device memory."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
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

    def room_bytes(self, align_bytes: int) -> int:
        """Most that can be handed out."""
        return max(0, self._end - self._aligned(align_bytes))

    def allocate(self, nbytes: int, align_bytes: int, purpose: str) -> int:
        """Address of `nbytes` new bytes.

        Raises ValueError, and hands out nothing, when they do not fit; the message names the purpose.
        """
        room_bytes = self.room_bytes(align_bytes)
        if nbytes > room_bytes:
            raise ValueError(f"{purpose} needs {nbytes} bytes of device memory; {room_bytes} are free")
        address = self._aligned(align_bytes)
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

    def allocate(self, nbytes: int, align_bytes: int, purpose: str) -> int:
        """Address of `nbytes` new bytes in the last bank that has room, so that they take least from keys.

        Raises ValueError, and hands out nothing, when no bank has room; the message names the purpose.
        """
        banks = [bank for _, bank in reversed(self._banks)]
        emptiest = max(banks, key=lambda bank: bank.free_bytes)
        chosen = next((bank for bank in banks if bank.room_bytes(align_bytes) >= nbytes), emptiest)
        return chosen.allocate(nbytes, align_bytes, purpose)

    def allocate_units(
        self, counts: Sequence[int], unit_bytes: int, align_bytes: int, purpose: str
    ) -> list[list[tuple[int, int]]]:
        """Pieces of whole units, `counts[m]` of them for key master m.

        They lie in the first banks of that master that have room, and if those are full in the first of any.

        Returns:
            by master (address, units) of each piece; a piece begins aligned and its units follow each other.

        Raises:
            ValueError: no room for all; nothing is handed out, and the message names the purpose.

        """
        trial = deepcopy(self._banks)
        places = []
        for master, count in enumerate(counts):
            pieces, left = [], count
            for _, bank in sorted(trial, key=lambda one: one[0] != master):
                units = min(left, bank.room_bytes(align_bytes) // unit_bytes)
                if units:
                    pieces.append((bank.allocate(units * unit_bytes, align_bytes, purpose), units))
                    left -= units
            if left:
                total_bytes = sum(counts) * unit_bytes
                free_bytes = [bank.room_bytes(align_bytes) for _, bank in self._banks]
                raise ValueError(
                    f"{purpose} needs {total_bytes} bytes of device memory, in pieces of {unit_bytes};"
                    f" {sum(free_bytes)} are free, at most {max(free_bytes)} in one piece"
                )
            places.append(pieces)
        self._banks = trial
        return places


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
