"""Control and status registers, generated from a register table."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi_lite import register_access
from nearkv_hdl.spec.register_map import WORD_BYTES, Access, Register, check_table

_WORD_BITS = 8 * WORD_BYTES


def register_shape(register: Register):
    """Shape of a register's value: its fields by name, or a number."""
    width = register.used_mask.bit_length()
    if not register.fields:
        return unsigned(width)
    fields = {field.name: data.Field(field.width, field.lsb) for field in register.fields}
    return data.FlexibleLayout(width, fields)


def _initial(register: Register):
    """The reset value as Amaranth wants it for the register's shape."""
    return register.unpack(register.reset) if register.fields else register.reset


class RegisterBlock(wiring.Component):
    """Holds the registers of a table and gives every one the behaviour of its access.

    Formula: rw keeps the bytes whose strobes are set; ro shows the device's value, or a constant; wo and cmd
    pass written ones on as commands, and cmd reads the device's value; cor collects the bits that the device
    sets until a read, tow until a written 1 inverts them. A bit that the device sets in the cycle of such a
    read or write ends up set: no event is lost. Words without a register, and bits outside the fields of
    one, read 0 and keep nothing.
    Tearing: a read of the lower word of a ro register of two words keeps its upper word, which the reads of
    the upper word return until a lower word of another such register is read. The words of a rw register
    change one by one; whoever uses it takes it when it is complete.
    Timing: latency 0 for reads, 1 for writes; interval 1. A command lasts one cycle, that of its write.
    Numerics: none.
    Reset: all registers, to the values of the table.

    Args:
        registers: the table.
        constants: values of ro registers that the device does not drive; all whose reset is None.

    Members:
        access: reads and writes.
        clear: returns every register to its reset value, in preference to all else.
        <name>: the value, for each register by its name in lower case; driven by the device if ro or cmd.
        <name>_command: written ones (wo, cmd).
        <name>_set: bits to set (cor, tow).

    Raises ValueError as check_table, and for a ro register without reset or constant.

    """

    def __init__(self, registers: tuple[Register, ...], constants: Mapping[Register, int]) -> None:
        check_table(registers)
        for register in registers:
            if register.reset is None and register not in constants:
                raise ValueError(f"register {register.name} has no reset; allowed: a reset or a constant")
        self.registers = registers
        self.constants = constants
        members = {"access": In(register_access()), "clear": In(1)}
        for register in registers:
            name, shape = register.name.lower(), register_shape(register)
            match register.access:
                case Access.READ_WRITE:
                    members[name] = Out(shape, init=_initial(register))
                case Access.READ_ONLY if register not in constants:
                    members[name] = In(shape)
                case Access.WRITE_ONLY:
                    members[f"{name}_command"] = Out(shape)
                case Access.COMMAND:
                    members |= {name: In(shape), f"{name}_command": Out(shape)}
                case Access.CLEAR_ON_READ:
                    members[f"{name}_set"] = In(shape)
                case Access.TOGGLE_ON_WRITE:
                    members |= {name: Out(shape, init=_initial(register)), f"{name}_set": In(shape)}
        super().__init__(members)

    @property
    def latency(self) -> int:
        """Cycles from a write to the register's new value."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two accesses."""
        return 1

    def elaborate(self, platform):
        m = Module()
        # By word: what it reads.
        words: dict[int, Value] = {}
        torn = [r for r in self.registers if r.words > 1 and self._is_driven(r)]
        kept = Signal(_WORD_BITS, reset_less=True)
        kept_of = Signal(range(len(torn) + 1))  # position in `torn` from 1; 0: none

        for register in self.registers:
            first = register.offset // WORD_BYTES
            value = self._value(m, register, first)
            for index in range(register.words):
                words[first + index] = value[_WORD_BITS * index : _WORD_BITS * (index + 1)]
            if register in torn:
                position = torn.index(register) + 1
                upper = words[first + 1]
                words[first + 1] = Mux(kept_of == position, kept, upper)
                with m.If(self._reads(first)):
                    m.d.sync += [kept.eq(upper), kept_of.eq(position)]
        with m.If(self.clear):
            m.d.sync += kept_of.eq(0)

        with m.Switch(self.access.read_word):
            for word, value in words.items():
                with m.Case(word):
                    m.d.comb += self.access.read_data.eq(value)
        return m

    def _is_driven(self, register: Register) -> bool:
        return register.access is Access.READ_ONLY and register not in self.constants

    def _reads(self, word: int) -> Value:
        return self.access.read & (self.access.read_word == word)

    def _value(self, m: Module, register: Register, first: int) -> Value:
        """Add one register; returns the value that it reads."""
        name, width = register.name.lower(), register.used_mask.bit_length()
        used = Const(register.used_mask, width)
        access = self.access
        written = Signal(register.words, name=f"{name}_written")
        m.d.comb += [
            bit.eq(access.write & (access.write_word == first + index)) for index, bit in enumerate(written)
        ]
        strobes = Cat(strobe.replicate(8) for strobe in access.write_strobes)
        ones = (access.write_data & strobes & written[0].replicate(_WORD_BITS))[:width] & used

        match register.access:
            case Access.READ_WRITE:
                value = Value.cast(getattr(self, name))
                for index in range(register.words):
                    part = slice(_WORD_BITS * index, min(_WORD_BITS * (index + 1), width))
                    changed = strobes & used[part]
                    with m.If(written[index]):
                        m.d.sync += value[part].eq(value[part] & ~changed | access.write_data & changed)
                with m.If(self.clear):
                    m.d.sync += value.eq(register.reset)
                return value
            case Access.READ_ONLY:
                if register in self.constants:
                    return Const(self.constants[register], 8 * register.size_bytes)
                return Value.cast(getattr(self, name)) & used
            case Access.WRITE_ONLY:
                m.d.comb += Value.cast(getattr(self, f"{name}_command")).eq(ones)
                return Const(0, _WORD_BITS)
            case Access.COMMAND:
                m.d.comb += Value.cast(getattr(self, f"{name}_command")).eq(ones)
                return Value.cast(getattr(self, name)) & used
            case Access.CLEAR_ON_READ:
                value = Signal(width, name=name, init=register.reset)
                sets = Value.cast(getattr(self, f"{name}_set")) & used
                m.d.sync += value.eq(Mux(self._reads(first), 0, value) | sets)
            case Access.TOGGLE_ON_WRITE:
                value = Value.cast(getattr(self, name))
                sets = Value.cast(getattr(self, f"{name}_set")) & used
                m.d.sync += value.eq(value ^ ones | sets)
        with m.If(self.clear):
            m.d.sync += value.eq(register.reset)
        return value
