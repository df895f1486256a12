"""What a register is: offset, size, access rule, reset value, fields; and the checks a table must pass."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

WORD_BYTES = 4
WINDOW_BYTES = 4096  # what XRT maps for one kernel


class Access(Enum):
    """What a read and a write do."""

    READ_WRITE = "rw"
    READ_ONLY = "ro"  # a write is ignored
    WRITE_ONLY = "wo"  # a written 1 is a command; reads 0
    COMMAND = "cmd"  # a written 1 is a command; reads the device's state
    CLEAR_ON_READ = "cor"  # a read returns the bits and clears them; a write is ignored
    TOGGLE_ON_WRITE = "tow"  # a written 1 inverts the bit


@dataclass(frozen=True)
class Field:
    """Bits lsb … lsb + width − 1 of a register."""

    name: str
    lsb: int
    width: int
    doc: str

    @property
    def mask(self) -> int:
        """The field's bits within the register."""
        return ((1 << self.width) - 1) << self.lsb


@dataclass(frozen=True)
class Register:
    """One entry of the table; `reset` is None where the design decides (`identity_values`).

    A register without fields is one number. Of a register with fields, bits outside them read 0 and keep
    nothing.
    """

    name: str
    offset: int
    size_bytes: int
    access: Access
    reset: int | None
    doc: str
    fields: tuple[Field, ...] = ()

    @property
    def used_mask(self) -> int:
        """Bits that hold something."""
        whole = (1 << 8 * self.size_bytes) - 1
        return sum(field.mask for field in self.fields) if self.fields else whole

    @property
    def words(self) -> int:
        """32-bit words."""
        return self.size_bytes // WORD_BYTES

    def mask(self, field_name: str) -> int:
        """Bits of one field."""
        return self._field(field_name).mask

    def pack(self, **values: int) -> int:
        """The register with the named fields set and all other bits 0; ValueError if a value does not fit."""
        word = 0
        for name, value in values.items():
            field = self._field(name)
            if not 0 <= value < 1 << field.width:
                raise ValueError(f"{self.name}.{name} is {value}; allowed: 0 to {(1 << field.width) - 1}")
            word |= value << field.lsb
        return word

    def unpack(self, value: int) -> dict[str, int]:
        """Every field's value."""
        return {field.name: (value & field.mask) >> field.lsb for field in self.fields}

    def _field(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise ValueError(f"{self.name} has no field {name!r}; it has {[field.name for field in self.fields]}")


def check_table(registers: tuple[Register, ...]) -> None:
    """Raise ValueError unless registers have names of their own, are aligned, inside the window and disjoint.

    Registers whose accesses have effects have one word, so that no effect is spread over two accesses.
    """
    taken: dict[int, str] = {}
    names: set[str] = set()
    for register in registers:
        if register.name in names:
            raise ValueError(f"register {register.name} is listed twice")
        names.add(register.name)
        if register.size_bytes not in (4, 8) or register.offset % WORD_BYTES:
            raise ValueError(
                f"register {register.name} has {register.size_bytes} bytes at {register.offset:#x};"
                f" allowed: 4 or 8, aligned to {WORD_BYTES}"
            )
        if not 0 <= register.offset <= WINDOW_BYTES - register.size_bytes:
            raise ValueError(f"register {register.name} at {register.offset:#x} leaves the window")
        for word in range(register.offset, register.offset + register.size_bytes, WORD_BYTES):
            if word in taken:
                raise ValueError(f"registers {taken[word]} and {register.name} overlap at {word:#x}")
            taken[word] = register.name
        if register.size_bytes > WORD_BYTES and register.access not in (Access.READ_WRITE, Access.READ_ONLY):
            raise ValueError(
                f"register {register.name} of access {register.access.value} has {register.size_bytes} bytes;"
                f" allowed: {WORD_BYTES}"
            )
        used = 0
        for field in register.fields:
            if field.mask & used or field.mask >> (8 * register.size_bytes):
                raise ValueError(
                    f"field {register.name}.{field.name} overlaps another or leaves its register"
                )
            used |= field.mask
