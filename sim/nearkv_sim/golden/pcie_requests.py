"""The memory requests that a burst becomes, worked out byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

DWORD_BYTES = 4


@dataclass(frozen=True)
class MemoryRequest:
    """A memory request as it stands in a TLP's header, with its payload.

    Args:
        address: of the first dword, in bytes.
        dwords: length.
        first_be, last_be: byte enables of the first and last dword; of a single dword last_be is 0 (PCI
            Express Base Specification 3.1, 2.2.5).
        payload: by address, the bytes that are to be written; None for a read.

    """

    address: int
    dwords: int
    first_be: int
    last_be: int
    payload: Mapping[int, int] | None = None


def split_read(address: int, beats: int, max_read_bytes: int, beat_bytes: int = 64) -> list[MemoryRequest]:
    """Requests of a read burst of `beats` whole beats, the first one from `address` on."""
    end = (address // beat_bytes + beats) * beat_bytes
    return [_request(block, None) for block in _blocks(dict.fromkeys(range(address, end), 0), max_read_bytes)]


def split_write(content: Mapping[int, int], max_payload_bytes: int) -> list[MemoryRequest]:
    """Requests of a write burst of the bytes `content`, by address, which have no gaps."""
    return [_request(block, block) for block in _blocks(content, max_payload_bytes)]


def _blocks(content: Mapping[int, int], block_bytes: int) -> Iterator[dict[int, int]]:
    """The bytes of each aligned block, in rising order."""
    for number in sorted({address // block_bytes for address in content}):
        start = number * block_bytes
        yield {at: content[at] for at in range(start, start + block_bytes) if at in content}


def _request(block: Mapping[int, int], payload: Mapping[int, int] | None) -> MemoryRequest:
    dwords = sorted({address // DWORD_BYTES for address in block})
    first, last = (
        sum((DWORD_BYTES * dword + lane in block) << lane for lane in range(DWORD_BYTES))
        for dword in (dwords[0], dwords[-1])
    )
    return MemoryRequest(
        address=DWORD_BYTES * dwords[0],
        dwords=len(dwords),
        first_be=first,
        last_be=last if len(dwords) > 1 else 0,
        payload=payload,
    )
