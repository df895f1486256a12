"""Entries of the native mode's queues: 64 bytes of submission, 16 of completion, little-endian.

Opcode, command identifier and the last two words of a completion lie where the NVM Express Base Specification
2.0, section 3.3.3, has them: submission head in bits 15:0 of word 2, identifier in bits 15:0 of word 3, phase
in its bit 16, status code and type from bit 17. What an entry carries beyond that are the arguments of the
scoring kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.register_map import Register
from nearkv_hdl.spec.registers import ErrorCode

SUBMISSION_BYTES = 64
COMPLETION_BYTES = 16
LINE_BYTES = 64  # unit of window sizes and of error addresses, and alignment of addresses
OPCODE_SCORE = 0x81  # the first vendor-specific opcodes (80h on) that have data for the device


@dataclass(frozen=True)
class EntryField:
    """A field of a submission entry.

    Attributes:
        offset, size_bytes: its place.
        argument: the kernel's argument that gets it; None for none.
        unit: bytes that 1 in this field stands for, as the argument counts them.

    """

    offset: int
    size_bytes: int
    argument: str | None = None
    unit: int = 1


SUBMISSION = {
    "opcode": EntryField(0, 1),
    "reserved_1": EntryField(1, 1),
    "command_id": EntryField(2, 2),
    "block_count": EntryField(4, 4, "BLOCK_COUNT"),
    "descriptor_address": EntryField(8, 8, "DESCRIPTOR_ADDRESS"),
    "key_address": EntryField(16, 8, "KEY_ADDRESS"),
    "query_address": EntryField(24, 8, "QUERY_ADDRESS"),
    "result_address": EntryField(32, 8, "RESULT_ADDRESS"),
    "key_lines": EntryField(40, 4, "KEY_BYTES", LINE_BYTES),
    "query_lines": EntryField(44, 4, "QUERY_BYTES", LINE_BYTES),
    "result_lines": EntryField(48, 4, "RESULT_BYTES", LINE_BYTES),
    "head_dim": EntryField(52, 2, "HEAD_DIM"),
    "heads": EntryField(54, 1, "HEADS"),
    "flags": EntryField(55, 1, "FLAGS"),
    "k": EntryField(56, 4, "K"),
    "stream_crc32c": EntryField(60, 4, "STREAM_CRC32C"),
}
# A field whose argument this build's kernel does not have is reserved.
_ARGUMENTS = {argument.name: argument for argument in reg.ARGUMENTS}
ARGUMENT_FIELDS: dict[Register, str] = {
    _ARGUMENTS[field.argument]: name for name, field in SUBMISSION.items() if field.argument in _ARGUMENTS
}
# Bits of a field that must be 0: all of them without an argument, those that its argument does not keep.
_RESERVED_MASKS = {
    name: (1 << 8 * field.size_bytes) - 1
    for name, field in SUBMISSION.items()
    if name not in ("opcode", "command_id")
}
_RESERVED_MASKS |= {
    name: _RESERVED_MASKS[name] & ~argument.used_mask for argument, name in ARGUMENT_FIELDS.items()
}
RESERVED_BITS = {name: mask for name, mask in _RESERVED_MASKS.items() if mask}
ALIGNED_FIELDS = ("descriptor_address", "key_address", "query_address", "result_address")
NONZERO_FIELDS = ("block_count", "key_lines", "query_lines", "result_lines", "head_dim", "heads")


class StatusType(IntEnum):
    """Status code type of a completion."""

    GENERIC = 0  # the code is a GenericStatus
    KERNEL = 7  # vendor-specific: the code is the kernel's ErrorCode


class GenericStatus(IntEnum):
    """Codes of type GENERIC."""

    SUCCESS = 0
    INVALID_OPCODE = 1
    INVALID_FIELD = 2  # `token` is the byte of the entry where the first wrong field begins


def pack_submission(**values: int) -> bytes:
    """Bytes of a submission entry; fields not named are 0.

    Raises ValueError for an unknown field, or a value that its field does not hold.
    """
    entry = bytearray(SUBMISSION_BYTES)
    for name, value in values.items():
        if name not in SUBMISSION:
            raise ValueError(f"field is {name!r}; allowed: {', '.join(SUBMISSION)}")
        field = SUBMISSION[name]
        if not 0 <= value < 1 << 8 * field.size_bytes:
            raise ValueError(f"{name} is {value}; allowed: 0 to {(1 << 8 * field.size_bytes) - 1}")
        entry[field.offset : field.offset + field.size_bytes] = value.to_bytes(field.size_bytes, "little")
    return bytes(entry)


def unpack_submission(entry: bytes) -> dict[str, int]:
    """Every field of a submission entry of 64 bytes."""
    return {
        name: int.from_bytes(entry[field.offset : field.offset + field.size_bytes], "little")
        for name, field in SUBMISSION.items()
    }


@dataclass(frozen=True)
class Completion:
    """A completion entry.

    Attributes:
        command_id: of the submission.
        status_type, status_code: 0 and 0 for success.
        sq_head: index of the submission entry that is fetched next.
        phase: inverts each time the queue wraps.
        token: the kernel's ERROR_TOKEN, or the place of a wrong field.
        address_line: the kernel's ERROR_ADDRESS / 64, modulo 2^48: all of a physical address below 2^54.

    """

    command_id: int
    status_type: int
    status_code: int
    sq_head: int
    phase: int
    token: int = 0
    address_line: int = 0

    @property
    def failed(self) -> bool:
        """Whether the results are not to be used."""
        return (self.status_type, self.status_code) != (StatusType.GENERIC, GenericStatus.SUCCESS)

    @property
    def status(self) -> GenericStatus | ErrorCode | None:
        """The status by name; None for one that this version does not know."""
        names: type[GenericStatus] | type[ErrorCode]
        names = GenericStatus if self.status_type == StatusType.GENERIC else ErrorCode
        known = self.status_type in (StatusType.GENERIC, StatusType.KERNEL)
        return names(self.status_code) if known and self.status_code in list(names) else None

    def pack(self) -> bytes:
        """Bytes of the entry; values are taken modulo the width of their fields."""
        words = (
            self.token,
            self.address_line,
            self.sq_head & 0xFFFF | (self.address_line >> 32) << 16,
            self.command_id & 0xFFFF | self.phase << 16 | self.status_code << 17 | self.status_type << 25,
        )
        return b"".join((word & 0xFFFF_FFFF).to_bytes(4, "little") for word in words)

    @classmethod
    def unpack(cls, entry: bytes) -> Completion:
        """Read 16 bytes."""
        words = [int.from_bytes(entry[at : at + 4], "little") for at in range(0, COMPLETION_BYTES, 4)]
        return cls(
            command_id=words[3] & 0xFFFF,
            status_type=words[3] >> 25 & 0x7,
            status_code=words[3] >> 17 & 0xFF,
            sq_head=words[2] & 0xFFFF,
            phase=words[3] >> 16 & 1,
            token=words[0],
            address_line=words[1] | (words[2] >> 16) << 32,
        )
