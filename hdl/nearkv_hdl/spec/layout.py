"""Memory layouts of version 2: key blocks, their channel tables, KV rows and block descriptors.

All multi-byte fields are little-endian. A *plane beat* is `bus_bytes` consecutive bytes of a plane.

Version 2 adds to version 1 the header behind a block's planes (`spec.block_header`) and, in the descriptor,
the generation that it must have, for which the shifts were packed into four bits each.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from nearkv_hdl.spec.formats import is_power_of_two

LAYOUT_VERSION = 2
BLOCK_TOKENS = 128  # tokens of one (sequence, layer, kv head) in a key block
HEAD_DIMS = (64, 128, 256)
MAX_QUERY_GROUP = 8
FP16_BYTES = 2
SCORE_BYTES = 4
PAIR_BYTES = 8  # of a selection: token index u32, score i32
PAIRS_PER_LINE = 8  # a head's pairs are filled up with zeros to lines of 64 bytes
BLOCK_ALIGN_BYTES = 4096  # key blocks and headers start on a page of the smallest NAND or DRAM mapping unit


class KeyFormat(IntEnum):
    """What the scorer streams of a key block."""

    INT8 = 0  # high plane, then low plane
    INT4 = 1  # the high plane alone: half the bytes of the same block


def check_head_dim(head_dim: int) -> None:
    """Raise ValueError unless the head dimension is one the layout knows."""
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim is {head_dim}; allowed: {', '.join(map(str, HEAD_DIMS))}")


@dataclass(frozen=True)
class KeyBlockLayout:
    """Sizes of a key block of `block_tokens` tokens with `head_dim` channels.

    The block is two nibble planes, high then low. A plane is token-major: token t, channel i is nibble
    t·head_dim + i; nibble n lies in byte n // 2, in bits 3:0 if n is even and 7:4 if odd.
    """

    head_dim: int
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Refuse sizes that the layout does not know."""
        check_head_dim(self.head_dim)
        if self.block_tokens < 2 or not is_power_of_two(self.block_tokens):
            raise ValueError(f"block_tokens is {self.block_tokens}; allowed: a power of two from 2")

    @property
    def plane_bytes(self) -> int:
        """Bytes of one nibble plane."""
        return self.block_tokens * self.head_dim // 2

    @property
    def block_bytes(self) -> int:
        """Bytes of both planes."""
        return 2 * self.plane_bytes

    @property
    def channel_table_bytes(self) -> int:
        """Bytes of the header's tables: centre and scale, FP16 per channel, then the mean code, one byte."""
        return (2 * FP16_BYTES + 1) * self.head_dim

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of one token's FP16 key row followed by its value row."""
        return 2 * FP16_BYTES * self.head_dim

    def streamed_bytes(self, key_format: KeyFormat) -> int:
        """Bytes the scorer reads of one block."""
        return self.block_bytes if key_format is KeyFormat.INT8 else self.plane_bytes


def selection_bytes(pairs: int) -> int:
    """Bytes of one head's selection of so many pairs in memory."""
    return -(-pairs // PAIRS_PER_LINE) * PAIRS_PER_LINE * PAIR_BYTES


def query_code_bytes(query_bits: int) -> int:
    """Bytes of one folded query code in memory: one, or two for formats above 8 bits."""
    return 1 if query_bits <= 8 else 2


# One block descriptor: where the planes lie and what the scorer needs to know of the block.
#   key_address u64 | first_token u32 | head_dim u16 | key_format u8 | heads u8 | query_address u64 |
#   8 × (bias i32) | shifts u32: head h in bits 4h + 3 … 4h | generation u32
_DESCRIPTOR = struct.Struct("<QIHBBQ8iII")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
SHIFT_BITS = 4  # of a head's shift in a descriptor


@dataclass(frozen=True)
class BlockDescriptor:
    """One entry of a scoring job's descriptor list.

    Args:
        key_address: device address of the block's planes.
        query_address: device address of the folded codes, `heads` rows of head_dim signed bytes
            (16-bit little-endian for query formats above 8 bits).
        first_token: token index of the block's first score.
        head_dim: channels, one of HEAD_DIMS.
        key_format: planes to stream.
        bias: one integer per query head, length 1 to 8.
        shift: one e in 0…7 per query head, same length; up to 15 can be packed.
        generation: what the block's header must say.

    """

    key_address: int
    query_address: int
    first_token: int
    head_dim: int
    key_format: KeyFormat
    bias: tuple[int, ...]
    shift: tuple[int, ...]
    generation: int = 0

    def pack(self) -> bytes:
        """The descriptor as DESCRIPTOR_BYTES bytes; ValueError if a field does not fit."""
        heads = len(self.bias)
        if not 1 <= heads <= MAX_QUERY_GROUP or len(self.shift) != heads:
            raise ValueError(
                f"descriptor has {heads} biases and {len(self.shift)} shifts; allowed: 1 to"
                f" {MAX_QUERY_GROUP} of each, as many of both"
            )
        if not all(0 <= shift < 1 << SHIFT_BITS for shift in self.shift):
            raise ValueError(f"descriptor has shifts {self.shift}; allowed: 0 to {(1 << SHIFT_BITS) - 1}")
        shifts = sum(shift << SHIFT_BITS * head for head, shift in enumerate(self.shift))
        try:
            return _DESCRIPTOR.pack(
                self.key_address,
                self.first_token,
                self.head_dim,
                self.key_format,
                heads,
                self.query_address,
                *self.bias,
                *(0,) * (MAX_QUERY_GROUP - heads),
                shifts,
                self.generation,
            )
        except struct.error as error:
            raise ValueError(f"descriptor {self} does not fit its fields: {error}") from None

    @classmethod
    def unpack(cls, data: bytes) -> BlockDescriptor:
        """Read a descriptor; ValueError if the size, head_dim, format or head count is not allowed."""
        if len(data) != DESCRIPTOR_BYTES:
            raise ValueError(f"descriptor has {len(data)} bytes; allowed: {DESCRIPTOR_BYTES}")
        key_address, first_token, head_dim, key_format, heads, query_address, *rest = _DESCRIPTOR.unpack(data)
        check_head_dim(head_dim)
        if key_format not in (0, 1):
            raise ValueError(f"key_format is {key_format}; allowed: 0 (INT8), 1 (INT4)")
        if not 1 <= heads <= MAX_QUERY_GROUP:
            raise ValueError(f"heads is {heads}; allowed: 1 to {MAX_QUERY_GROUP}")
        *bias, shifts, generation = rest
        return cls(
            key_address=key_address,
            query_address=query_address,
            first_token=first_token,
            head_dim=head_dim,
            key_format=KeyFormat(key_format),
            bias=tuple(bias[:heads]),
            shift=tuple(shifts >> SHIFT_BITS * head & (1 << SHIFT_BITS) - 1 for head in range(heads)),
            generation=generation,
        )
