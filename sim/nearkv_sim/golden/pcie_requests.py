"""The memory requests that a burst becomes, worked out byte by byte."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def strobed_run(address: int, beats: Sequence[tuple[int, bytes]]) -> tuple[dict[int, int], bool]:
    """The bytes of a write burst that form one run without gaps, by address, and whether there are others.

    Args:
        address: of the burst.
        beats: strobes, bit l for lane l, and data of each beat.

    A beat counts as a whole: it belongs to the run if its own strobed bytes have no gap and go on where the
    run ends so far.

    """
    run: dict[int, int] = {}
    is_whole = True
    for number, (strobes, content) in enumerate(beats):
        start = (address // len(content) + number) * len(content)
        lanes = [lane for lane in range(len(content)) if strobes >> lane & 1]
        if not lanes:
            continue
        goes_on = not run or start + lanes[0] == max(run) + 1
        if goes_on and len(lanes) == lanes[-1] - lanes[0] + 1:
            run.update({start + lane: content[lane] for lane in lanes})
        else:
            is_whole = False
    return run, is_whole
