"""Commands that the host gives to card and drive: one write-combined store each, and a word that answers.

The card's is the doorbell that `nearkv_sim.card` charges for: device address, host address, length, flags.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from nearkv_sim.card.card import CONTROL_BAR, DMA_DOORBELL, DMA_DOORBELL_BYTES

MEMORY_BAR_BYTES = 64 << 30  # the card's memory, for its peers
DOORBELL_OFFSET = DMA_DOORBELL - CONTROL_BAR
_FORMAT = struct.Struct("<QQQQ")
_ROW_BITS = 32


class Operation(IntEnum):
    """What a command asks for."""

    LOAD = 1  # device memory from bus address
    STORE = 2  # device memory to bus address
    GATHER = 3  # rows of device memory, whose addresses are a list at the device address, to bus address


class Outcome(IntEnum):
    """How a command ended, in the low byte of its completion word."""

    DONE = 0
    LINK_ERROR = 1  # a read failed
    UNWRITTEN = 2  # memory that was never written


@dataclass(frozen=True)
class Doorbell:
    """One command.

    Attributes:
        operation: what to do.
        sequence: 24 bits, which come back with the outcome.
        device_address: in the device's memory; of a gather, of the list in host memory.
        bus_address: the other end.
        nbytes: length; of a gather, bytes of a row.
        rows: of a gather, else 0.

    """

    operation: Operation
    sequence: int
    device_address: int
    bus_address: int
    nbytes: int
    rows: int = 0

    def pack(self) -> bytes:
        """The store's 32 bytes."""
        length = self.rows << _ROW_BITS | self.nbytes
        return _FORMAT.pack(
            self.device_address, self.bus_address, length, self.operation | self.sequence << 8
        )

    @classmethod
    def unpack(cls, data: bytes) -> Doorbell:
        """Inverse of `pack`; ValueError for an operation that is none."""
        device_address, bus_address, length, flags = _FORMAT.unpack(data)
        return cls(
            Operation(flags & 0xFF),
            flags >> 8,
            device_address,
            bus_address,
            length & (1 << _ROW_BITS) - 1,
            length >> _ROW_BITS,
        )

    def completion(self, outcome: Outcome) -> bytes:
        """The word that answers."""
        return (self.sequence << 8 | outcome).to_bytes(4, "little")


assert _FORMAT.size == DMA_DOORBELL_BYTES
