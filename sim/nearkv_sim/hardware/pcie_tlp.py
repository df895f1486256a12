"""Transaction-layer packets: their sizes, and how transfers are cut into them.

Source: PCI Express Base Specification 5.0 (framing, headers, splitting rules).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nearkv_sim.hardware.pcie_credits import TlpKind

__all__ = ["SentTlp", "padded_bytes", "request_overhead_bytes", "split_completion", "split_request"]

TLP_FRAMING_BYTES = 8  # STP or STP token, sequence number, LCRC, END: the same sum in every generation
HEADER_32_BIT_BYTES = 12  # three doublewords: requests below 4 GiB, and every completion
HEADER_64_BIT_BYTES = 16  # four doublewords: mandatory at 4 GiB and above, forbidden below
DLLP_BYTES = 8  # two framing symbols, four bytes, CRC16
PAGE_BYTES = 4096  # no request may cross such a boundary (Base Spec 2.2.7)
MSI_ADDRESS = 0xFEE0_0000  # start of the x86 interrupt window (Intel SDM volume 3, 11.11)
MSI_BYTES = 4
CPU_LINE_BYTES = 64  # widest load, store or write-combining flush of an x86 core


@dataclass(frozen=True)
class SentTlp:
    """One TLP as it was sent.

    Attributes:
        end_ps: its last byte leaves the sender, rounded up.
        upstream: from device to host.
        kind: what flow control tells apart.
        address: of the first byte asked for or carried.
        payload_bytes, wire_bytes: what it carries, and with header, padding and framing.

    """

    end_ps: int
    upstream: bool
    kind: TlpKind
    address: int
    payload_bytes: int
    wire_bytes: int


def split_request(at: int, nbytes: int, limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut a transfer into (address, bytes) of at most `limit_bytes` of whole doublewords within one page."""
    end = at + nbytes
    while at < end:
        stop = min(end, (at & ~3) + limit_bytes, (at | PAGE_BYTES - 1) + 1)
        yield at, stop - at
        at = stop


def split_completion(at: int, nbytes: int, limit_bytes: int, boundary: int) -> Iterator[tuple[int, int]]:
    """Cut one read into completions that end on the last completion boundary within `limit_bytes`.

    What lies behind that boundary comes in a completion of its own even if it would have fitted, as of a
    completer that works in whole blocks; the rules (Base Spec 2.3.1.1) allow both.
    """
    end = at + nbytes
    while at < end:
        stop = min(end, (at + limit_bytes) // boundary * boundary)
        yield at, stop - at
        at = stop


def request_overhead_bytes(address: int) -> int:
    """Framing and header of a request to that address."""
    return TLP_FRAMING_BYTES + (HEADER_32_BIT_BYTES if address < 1 << 32 else HEADER_64_BIT_BYTES)


def padded_bytes(address: int, nbytes: int) -> int:
    """Payload on the wire: every doubleword that the bytes touch."""
    return ((address & 3) + nbytes + 3) & ~3
