"""Header of a key block in device memory: whose keys these are, and the check values of their planes.

Part of layout version 2. The header lies right behind the block's two planes, also for a reader that streams
the high plane alone, so that a block and its header are moved and misplaced together. Its CRC covers all
that stands before it: a damaged header is told from that of another block, or of the same block's earlier
contents.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from nearkv_hdl.spec.layout import LAYOUT_VERSION, KeyBlockLayout

MAGIC = 0x42564B4E  # "NKVB" in memory
CODE_FORMAT = 0  # two nibble planes of 8-bit codes, the one there is
# magic u32 | layout_version u16 | head_dim u16 | model u32 | sequence u32 | layer u16 | kv_head u16 |
# block_tokens u16 | code_format u8 | 0 u8 | first_token u32 | generation u32 | high_crc32c u32 |
# low_crc32c u32 | 5 × 0 u32 | header_crc32c u32
_HEADER = struct.Struct("<IHHIIHHHBxIIII20xI")
_STREAM = struct.Struct("<IIHH")
HEADER_BYTES = _HEADER.size
HEADER_WORDS = HEADER_BYTES // 4
FIRST_STREAM_WORD, LAST_STREAM_WORD = 2, 4  # model, sequence, layer with kv head
HIGH_CRC_WORD, LOW_CRC_WORD, HEADER_CRC_WORD = 8, 9, 15
MAX_U16, MAX_U32 = (1 << 16) - 1, (1 << 32) - 1


@dataclass(frozen=True)
class StreamIdentity:
    """Whose keys a stream of blocks holds; a block is one of these by its first token and generation.

    A job names the stream by the CRC32C of these 12 bytes. Streams that differ in 32 bits running, so in one
    field alone or in layer and head, never have the same one: a CRC sees every burst of up to its own width.

    Args:
        model: number of the model, 32 bits.
        sequence: number of the sequence, 32 bits.
        layer: 16 bits.
        kv_head: 16 bits.

    Raises ValueError that quotes the value and says what is allowed.

    """

    model: int = 0
    sequence: int = 0
    layer: int = 0
    kv_head: int = 0

    def pack(self) -> bytes:
        """The 12 bytes of the header."""
        return _STREAM.pack(self.model, self.sequence, self.layer, self.kv_head)

    def __post_init__(self) -> None:
        """Refuse what the header cannot hold."""
        limits = {"model": MAX_U32, "sequence": MAX_U32, "layer": MAX_U16, "kv_head": MAX_U16}
        for name, limit in limits.items():
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise ValueError(f"{name} is {value}; allowed: 0 to {limit}")


@dataclass(frozen=True)
class BlockHeader:
    """One block's header, without its own CRC.

    Args:
        identity: the stream's.
        layout: head_dim and tokens of the block.
        first_token: token index of the block's first token.
        generation: which of the contents that this block has had these are; the writer counts.
        high_crc32c, low_crc32c: of the planes.

    """

    identity: StreamIdentity
    layout: KeyBlockLayout
    first_token: int
    generation: int
    high_crc32c: int = 0
    low_crc32c: int = 0

    def pack(self, header_crc32c: int = 0) -> bytes:
        """The header as HEADER_BYTES bytes; ValueError if a field does not fit."""
        of = self.identity
        try:
            return _HEADER.pack(
                *(MAGIC, LAYOUT_VERSION, self.layout.head_dim),
                *(of.model, of.sequence, of.layer, of.kv_head),
                *(self.layout.block_tokens, CODE_FORMAT, self.first_token, self.generation),
                *(self.high_crc32c, self.low_crc32c, header_crc32c),
            )
        except struct.error as error:
            raise ValueError(f"header {self} does not fit its fields: {error}") from None
