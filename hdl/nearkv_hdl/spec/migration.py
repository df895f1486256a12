"""Memory layouts of keys and values on both sides of the migration interface, its descriptors and tables.

All multi-byte fields are little-endian. A *row* is one token's key or value of one head, a *KV row* both.

Row-major: [token, K|V, head_dim] FP16.
PIM: [K|V, tile, column, token of the tile] in columns of one unit's beat, so that consecutive columns of a
row lie in one bank at consecutive columns and neighbouring tokens in different banks at one row and column.
Quantised: [tile] records of a header with FP16 scales [K|V, token], then int8 [K|V, token, head_dim].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from math import prod
from typing import NamedTuple

from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.spec.layout import BLOCK_TOKENS, FP16_BYTES
from nearkv_hdl.spec.pim_design import PimDesign

PARTS = 2  # K and V
SCALE_HEADER_BYTES = 64  # of a record: room for 32 scales, and whole beats on buses up to 64 bytes
BLOCK_ENTRY_BYTES = 16
_ENTRY = struct.Struct("<QII")
_PRESENT = 1  # lowest bit of an entry's address: blocks are aligned


class Order(IntEnum):
    """In which order a stream carries the columns of a tile."""

    ROWS = 0  # K|V, token, column
    PIM = 1  # K|V, column, token


class Move(IntFlag):
    """What is asked of a move."""

    COPY = 0  # away from the processing units, bytes as they lie
    UP = 1  # towards the processing units; without it, away from them
    RELAYOUT = 2  # up: row-major to PIM layout; down: PIM layout to row-major
    QUANTISE = 4  # down only: FP16 to INT8 records. Lossy
    EXPAND = 8  # up only: INT8 records to FP16
    DIFFERENCE = 16  # leave out a block whose copy already has the source's generation


class MoveCode(IntEnum):
    """How a move ended."""

    DONE = 0
    SKIPPED = 1  # difference-only: the copy was current
    REFUSED = 2  # flags or token range not allowed; nothing was touched
    ABSENT = 3  # the block table has no such block
    STALE = 4  # its entry has another generation
    TABLE_ERROR = 5  # the entry could not be read
    READ_ERROR = 6
    WRITE_ERROR = 7
    OUTSIDE = 8  # the table's address is not aligned to a block, or the block not inside the window


class Digit(NamedTuple):
    """One digit of a device address: what it selects, out of how many."""

    name: str
    size: int


@dataclass(frozen=True)
class PimLayout:
    """Where keys and values lie in a PIM device, and the address map that puts them there.

    A device address is a number in mixed radix. From its lowest digit: byte of a column, the digits of
    `stripe`, `column`, the digits of `above`. A stripe is the units that neighbouring tokens go to; a tile is
    as many tokens as it has units.

    Args:
        design: its units take columns of `lanes` FP16 numbers.
        stripe: digits that select a unit, lowest first.
        columns: columns of one unit's open row (SSD: page).
        above: the digits above `column`, lowest first; "row" among them, the others select units.
        block_tokens: tokens of a block, a power of two and at least a tile.

    Raises ValueError that quotes the value and says what is allowed.

    """

    design: PimDesign
    stripe: tuple[Digit, ...]
    columns: int
    above: tuple[Digit, ...]
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Check the arguments."""
        for digit in (*self.stripe, Digit("column", self.columns), *self.above):
            if not is_power_of_two(digit.size):
                raise ValueError(f"{digit.name} has size {digit.size}; allowed: a power of two")
        names = [digit.name for digit in self.digits]
        if len(set(names)) != len(names):
            raise ValueError(f"digits are {', '.join(names)}; allowed: each name once")
        units = prod(d.size for d in (*self.stripe, *self.above) if d.name != "row")
        if units != self.design.units:
            raise ValueError(
                f"digits select {units} units; allowed: {self.design.units}, what {self.design.name} has"
            )
        if not is_power_of_two(self.block_tokens) or self.block_tokens < self.tile_tokens:
            raise ValueError(
                f"block_tokens is {self.block_tokens}; allowed: a power of two from {self.tile_tokens}"
            )
        if PARTS * self.tile_tokens * FP16_BYTES > SCALE_HEADER_BYTES:
            raise ValueError(
                f"a tile has {self.tile_tokens} tokens; allowed: up to"
                f" {SCALE_HEADER_BYTES // (PARTS * FP16_BYTES)}, whose scales fit a header"
            )
        if self.record_bytes > self.tile_bytes:
            raise ValueError(
                f"a tile has {self.tile_bytes} bytes; allowed: from {2 * SCALE_HEADER_BYTES}, for its record"
            )

    @property
    def name(self) -> str:
        """Of its design."""
        return self.design.name

    @property
    def tile_tokens(self) -> int:
        """Tokens that lie at one row and column."""
        return prod(digit.size for digit in self.stripe)

    @property
    def column_bytes(self) -> int:
        """Bytes of one column: one beat of a unit."""
        return self.design.lanes * FP16_BYTES

    @property
    def row_columns(self) -> int:
        """Columns of one token's key, or value."""
        return self.design.beats

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's FP16 key, or value."""
        return self.design.head_dim * FP16_BYTES

    @property
    def half_tile_bytes(self) -> int:
        """FP16 bytes of a tile's keys, or values: contiguous in both layouts' PIM order."""
        return self.tile_tokens * self.row_bytes

    @property
    def tile_bytes(self) -> int:
        """FP16 bytes of a tile's keys and values."""
        return PARTS * self.half_tile_bytes

    @property
    def record_bytes(self) -> int:
        """Bytes of a quantised tile: header and one byte a number."""
        return SCALE_HEADER_BYTES + self.tile_bytes // FP16_BYTES

    @property
    def block_tiles(self) -> int:
        """Tiles of a block."""
        return self.block_tokens // self.tile_tokens

    @property
    def block_bytes(self) -> int:
        """FP16 bytes of a block, and its alignment."""
        return self.block_tiles * self.tile_bytes

    @property
    def value_offset_bytes(self) -> int:
        """From a block's first key in PIM layout to its first value."""
        return self.block_bytes // PARTS

    @property
    def digits(self) -> tuple[Digit, ...]:
        """All digits of an address, lowest first."""
        return (Digit("byte", self.column_bytes), *self.stripe, Digit("column", self.columns), *self.above)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the device."""
        return prod(digit.size for digit in self.digits)

    def locate(self, address: int) -> dict[str, int]:
        """The digits of a device address by name; ValueError outside the device."""
        if not 0 <= address < self.capacity_bytes:
            raise ValueError(f"address is {address}; allowed: 0 to {self.capacity_bytes - 1}")
        place = {}
        for digit in self.digits:
            address, place[digit.name] = divmod(address, digit.size)
        return place

    def address_of(self, place: dict[str, int]) -> int:
        """Inverse of `locate`; ValueError for a digit that is missing, unknown or outside its range."""
        if place.keys() != {digit.name for digit in self.digits}:
            raise ValueError(
                f"digits are {', '.join(place)}; allowed: {', '.join(d.name for d in self.digits)}"
            )
        address = 0
        for digit in reversed(self.digits):
            if not 0 <= place[digit.name] < digit.size:
                raise ValueError(f"{digit.name} is {place[digit.name]}; allowed: 0 to {digit.size - 1}")
            address = address * digit.size + place[digit.name]
        return address

    def pim_offset(self, token: int, part: int, byte: int) -> int:
        """Byte offset in a block in PIM layout.

        Args:
            token: of the block.
            part: 0 for the key, 1 for the value.
            byte: of the row.

        """
        tile, place = divmod(token, self.tile_tokens)
        column, rest = divmod(byte, self.column_bytes)
        line = (part * self.block_tiles + tile) * self.row_columns + column
        return (line * self.tile_tokens + place) * self.column_bytes + rest


class BlockEntry(NamedTuple):
    """One entry of the block table: 8 bytes of address, 4 of generation, 4 unused.

    Attributes:
        address: of the block, aligned to its size; the lowest stored bit says that it is there.
        generation: counts the writes to the block.

    """

    address: int
    generation: int

    def pack(self) -> bytes:
        """The entry as BLOCK_ENTRY_BYTES bytes; ValueError for an odd address or one that does not fit."""
        if self.address & _PRESENT:
            raise ValueError(f"address is {self.address:#x}; allowed: even")
        try:
            return _ENTRY.pack(self.address | _PRESENT, self.generation, 0)
        except struct.error as error:
            raise ValueError(f"entry {tuple(self)} does not fit its fields: {error}") from None

    @classmethod
    def unpack(cls, data: bytes) -> BlockEntry | None:
        """Read an entry; None if no block is there. ValueError for another size."""
        if len(data) != BLOCK_ENTRY_BYTES:
            raise ValueError(f"entry has {len(data)} bytes; allowed: {BLOCK_ENTRY_BYTES}")
        address, generation, _ = _ENTRY.unpack(data)
        return cls(address & ~_PRESENT, generation) if address & _PRESENT else None
