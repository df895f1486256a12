"""What travels on a link: packets with their LCRC, and what a log line says of them."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from fractions import Fraction

from cocotb.utils import get_sim_time
from cocotbext.pcie.core.dllp import Dllp
from cocotbext.pcie.core.tlp import Tlp, TlpType

from nearkv_sim.pcie.tlp_log import TlpRecord

_NAMES = {
    TlpType.MEM_READ: "MRd",
    TlpType.MEM_READ_64: "MRd",
    TlpType.MEM_WRITE: "MWr",
    TlpType.MEM_WRITE_64: "MWr",
    TlpType.CPL: "Cpl",
    TlpType.CPL_DATA: "CplD",
}


def now_ps() -> int:
    """Simulated time."""
    return int(get_sim_time("ps"))


@dataclass(frozen=True)
class WireConfig:
    """One link: time of a byte, one-way latency, and how long Ack and UpdateFC may wait."""

    byte_time_ps: Fraction
    delay_ps: int
    dllp_interval_ps: int

    def packet_ps(self, wire_bytes: int) -> int:
        """Time of a packet on the wire, rounded up."""
        return max(1, -int(-wire_bytes * self.byte_time_ps // 1))


@dataclass(frozen=True)
class Traffic:
    """What has been sent: TLPs, their payload, and wire bytes, DLLPs included where they are seen."""

    tlps: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.tlps + other.tlps,
            self.payload_bytes + other.payload_bytes,
            self.wire_bytes + other.wire_bytes,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        """What is left of this without the other."""
        return Traffic(
            self.tlps - other.tlps,
            self.payload_bytes - other.payload_bytes,
            self.wire_bytes - other.wire_bytes,
        )


@dataclass(frozen=True)
class Frame:
    """A packet on its way.

    Attributes:
        packet: TLP or DLLP.
        lcrc: of a TLP, as sent.
        flipped: bits of its last byte that were inverted on the way.
        lost: whether the receiver acknowledges it and then loses it.

    """

    packet: Tlp | Dllp
    lcrc: int = 0
    flipped: int = 0
    lost: bool = False

    def intact(self) -> bool:
        """The receiver's verdict on the LCRC."""
        return lcrc(self.packet, self.flipped) == self.lcrc


def lcrc(tlp: Tlp, flipped: int = 0) -> int:
    """CRC-32 over sequence number and packet (Base Spec 3.6.3.2), some bits of its last byte inverted."""
    content = bytearray(tlp.seq.to_bytes(2, "big") + tlp.pack())
    content[-1] ^= flipped
    return zlib.crc32(content)


def payload_bytes(tlp: Tlp) -> int:
    """Bytes that a TLP carries on behalf of software, without padding to doublewords."""
    if not tlp.has_data():
        return 0
    if tlp.is_completion():
        return min(int(tlp.byte_count), 4 * int(tlp.length) - int(tlp.lower_address) % 4)
    return int(tlp.get_be_byte_count())


def record(tlp: Tlp, port: str, direction: str, status: str, since_ps: int) -> TlpRecord:
    """Line of the log for a TLP that has just been sent."""
    completion = tlp.is_completion()
    return TlpRecord(
        time_ps=now_ps() - since_ps,
        port=port,
        direction=direction,
        type=_NAMES.get(tlp.fmt_type, tlp.fmt_type.name),
        address=tlp.lower_address if completion else tlp.address + tlp.get_first_be_offset(),
        bytes=payload_bytes(tlp),
        wire_bytes=tlp.get_wire_size(),
        tag=tlp.tag if completion or not tlp.has_data() else None,
        requester=str(tlp.requester_id),
        status=status if status != "ok" or not completion or not tlp.status else tlp.status.name.lower(),
    )


class RetryBuffer(deque[Tlp]):
    """TLPs not yet acknowledged, oldest first, with the names that cocotbext-pcie's port calls."""

    put_nowait = deque.append
    get_nowait = deque.popleft

    def empty(self) -> bool:
        """Whether everything is acknowledged."""
        return not self
