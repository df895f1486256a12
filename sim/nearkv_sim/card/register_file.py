"""The register table as a device holds it: values, access rules, reserved words."""

from __future__ import annotations

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.register_map import WINDOW_BYTES, WORD_BYTES, Access, Register
from nearkv_hdl.spec.registers import REGISTERS, identity_values

_WORD_MASK = 0xFFFF_FFFF


class RegisterFile:
    """Values of every register; words that hold none, and bits outside fields, read 0 and ignore writes.

    `self[register]` is the device's own access and follows no rule. What a written command does is the
    device's business.

    Args:
        design: decides what the identity registers read.

    """

    def __init__(self, design: DesignConfig) -> None:
        self._identity = identity_values(design)
        self._words = {
            offset: (register, index)
            for register in REGISTERS
            for index, offset in enumerate(
                range(register.offset, register.offset + register.size_bytes, WORD_BYTES)
            )
        }
        self._values: dict[Register, int] = {}
        self._kept: tuple[Register | None, int] = (None, 0)  # whose upper word, and that word
        self.reset()

    def reset(self) -> None:
        """Return every register to its reset value."""
        self._kept = (None, 0)
        self._values = {
            register: self._identity[register] if register.reset is None else register.reset
            for register in REGISTERS
        }

    def __getitem__(self, register: Register) -> int:
        """Value as the device sees it."""
        return self._values[register]

    def __setitem__(self, register: Register, value: int) -> None:
        """Set it, whatever its access rule."""
        self._values[register] = value

    def read_word(self, offset: int) -> int:
        """What the host reads; ValueError for an offset that is misaligned or outside the window."""
        self.check_word(offset)
        register, index = self._words.get(offset, (None, 0))
        if register is None or register.access is Access.WRITE_ONLY:
            return 0
        value = self._values[register]
        if register.access is Access.CLEAR_ON_READ:
            self._values[register] = 0
        if register.access is Access.READ_ONLY and register.words > 1:
            if index == 0:
                self._kept = (register, value >> 32)
            elif self._kept[0] is register:
                return self._kept[1]
        return value >> (32 * index) & _WORD_MASK

    def write_word(self, offset: int, value: int) -> Register | None:
        """Apply a host's write by the register's rule; returns the register, None for a reserved word."""
        self.check_word(offset, value)
        register, index = self._words.get(offset, (None, 0))
        if register is None:
            return None
        old = self._values[register]
        value &= register.used_mask >> (32 * index)
        match register.access:
            case Access.READ_WRITE:
                kept = old & ~(_WORD_MASK << (32 * index))
                self._values[register] = kept | value << (32 * index)
            case Access.TOGGLE_ON_WRITE:
                self._values[register] = old ^ value << (32 * index)
            case Access.READ_ONLY | Access.WRITE_ONLY | Access.COMMAND | Access.CLEAR_ON_READ:
                pass
        return register

    @staticmethod
    def check_word(offset: int, value: int = 0) -> None:
        """Raise ValueError for an offset that is misaligned or outside, or a value beyond 32 bits."""
        if offset % WORD_BYTES or not 0 <= offset < WINDOW_BYTES:
            raise ValueError(
                f"register offset is {offset:#x}; allowed: multiples of {WORD_BYTES} below {WINDOW_BYTES:#x}"
            )
        if not 0 <= value <= _WORD_MASK:
            raise ValueError(f"register value is {value:#x}; allowed: 0 to {_WORD_MASK:#x}")
