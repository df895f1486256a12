"""The TLP log: one JSON object per line and TLP, alike from the packet simulation and the analytic link."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from nearkv_sim.hardware.pcie_credits import TlpKind
from nearkv_sim.hardware.pcie_tlp import SentTlp

__all__ = ["TlpLog", "TlpRecord", "analytic_record", "read_log", "totals"]

CARD_PORT = "card"
TO_DEVICE, FROM_DEVICE = "to_device", "from_device"


@dataclass(frozen=True)
class TlpRecord:
    """One transmission of one TLP.

    Attributes:
        time_ps: its last byte leaves the sender.
        port: the link: `card` and `drive` are those of the devices, `root` joins switch and root complex, so
            that a TLP between host and card is logged on both, and one between card and drive never on it.
        direction: `to_device` or `from_device`, away from the root complex or towards it.
        type: `MRd`, `MWr`, `CplD`, `Cpl`.
        address: of a request, in bytes; of a completion its lower seven bits.
        bytes: payload carried, 0 of a read request.
        wire_bytes: header, payload in doublewords, framing.
        tag, requester: transaction; null where the model has none.
        status: `ok`, `replay`, or the fault it suffers.

    """

    time_ps: int
    port: str
    direction: str
    type: str
    address: int
    bytes: int
    wire_bytes: int
    tag: int | None = None
    requester: str | None = None
    status: str = "ok"


def analytic_record(sent: SentTlp) -> TlpRecord:
    """Record of what `hardware.pcie.PcieLink` has sent: a link with a card and no tags."""
    completion = sent.kind is TlpKind.COMPLETION
    return TlpRecord(
        time_ps=sent.end_ps,
        port=CARD_PORT,
        direction=FROM_DEVICE if sent.upstream else TO_DEVICE,
        type={TlpKind.POSTED: "MWr", TlpKind.NON_POSTED: "MRd", TlpKind.COMPLETION: "CplD"}[sent.kind],
        address=sent.address & 0x7F if completion else sent.address,
        bytes=sent.payload_bytes,
        wire_bytes=sent.wire_bytes,
    )


class TlpLog:
    """Writes records to a file, which is created or replaced. Raises OSError if it cannot be."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")

    def write(self, record: TlpRecord) -> None:
        """Append a line."""
        self._file.write(json.dumps(asdict(record)) + "\n")

    def write_analytic(self, sent: SentTlp) -> None:
        """Append what an analytic link has sent."""
        self.write(analytic_record(sent))

    def flush(self) -> None:
        """Let readers see every line so far."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file; twice is allowed."""
        self._file.close()


def read_log(path: Path) -> Iterator[TlpRecord]:
    """Records of a log file, in its order; ValueError names file and line of one that is none."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield TlpRecord(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: {error}; allowed: a TLP record") from None


def totals(
    records: Iterable[TlpRecord], port: str = CARD_PORT
) -> dict[tuple[str, str], tuple[int, int, int]]:
    """TLPs, payload bytes and wire bytes on one link, by (direction, type)."""
    tlps: Counter[tuple[str, str]] = Counter()
    payload_bytes: Counter[tuple[str, str]] = Counter()
    wire_bytes: Counter[tuple[str, str]] = Counter()
    for record in records:
        if record.port == port:
            key = record.direction, record.type
            tlps[key] += 1
            payload_bytes[key] += record.bytes
            wire_bytes[key] += record.wire_bytes
    return {key: (tlps[key], payload_bytes[key], wire_bytes[key]) for key in sorted(tlps)}
