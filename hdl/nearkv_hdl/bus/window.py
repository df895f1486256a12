"""The gate of an AXI manager: a command needs room for its status and must not leave its window."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.transfer import command_layout
from nearkv_hdl.stream.pipeline import PipelineControl


def checked_layout(address_bits: int):
    """A command's first and last byte, and what speaks against issuing it.

    `last` is address + bytes − 1, modulo the address space: before `address` for an empty command, and for a
    refused one perhaps.
    """
    return data.StructLayout({"address": address_bits, "last": address_bits, "empty": 1, "refused": 1})


class WindowCheck(wiring.Component):
    """Lets a limited number of commands in, and marks those that would leave the window.

    Formula: a command of at least one byte is refused unless window_base <= address and address + bytes <=
    window_base + window_bytes, both within the address space. An empty one touches nothing and is never
    refused.
    Timing: latency 2, interval 1. A stalled `o` stops `i` after two commands; `commands` commands whose
    statuses have not been taken stop it too.
    Numerics: unsigned; differences and sums keep their borrow and carry.
    Cuts: inputs to `o`; `i.ready` follows `o.ready`. Base and size of the window are used in the cycle in
    which the command is taken, and only then.
    Reset: valid bits, count.

    Args:
        commands: commands that may be under way, from 2.
        address_bits: width of addresses, 4 to 64 (small ones are for proofs).
        length_bits: width of a command's byte count, up to address_bits.

    Members:
        i: commands.
        window_base, window_bytes: what the command may touch.
        status_taken: a command is over.
        o: the same commands, checked.

    Raises ValueError for an argument outside its range.

    """

    def __init__(self, commands: int, address_bits: int, length_bits: int) -> None:
        if commands < 2:
            raise ValueError(f"commands is {commands}; allowed: from 2")
        if not 4 <= address_bits <= 64:
            raise ValueError(f"address_bits is {address_bits}; allowed: 4 to 64")
        if not 1 <= length_bits <= address_bits:
            raise ValueError(f"length_bits is {length_bits}; allowed: 1 to address_bits, {address_bits}")
        self.commands = commands
        self.address_bits = address_bits
        self.length_bits = length_bits
        self._control = PipelineControl(2)
        super().__init__(
            {
                "i": In(stream.Signature(command_layout(address_bits, length_bits))),
                "window_base": In(address_bits),
                "window_bytes": In(address_bits),
                "status_taken": In(1),
                "o": Out(stream.Signature(checked_layout(address_bits))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o`: differences, then their comparison."""
        return self._control.latency

    @property
    def interval(self) -> int:
        """Cycles between two commands."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.control = control = self._control
        command = self.i.payload
        wide = self.address_bits + 1  # with borrow or carry

        under_way = Signal(range(self.commands + 1))
        has_place = Signal()
        m.d.comb += [
            has_place.eq(under_way != self.commands),
            control.i_valid.eq(self.i.valid & has_place),
            self.i.ready.eq(control.i_ready & has_place),
            self.o.valid.eq(control.o_valid),
            control.o_ready.eq(self.o.ready),
        ]
        m.d.sync += under_way.eq(under_way + (self.i.valid & self.i.ready) - self.status_taken)

        address = Signal(self.address_bits, reset_less=True)
        last = Signal(wide, reset_less=True)
        offset = Signal(wide, reset_less=True)
        slack = Signal(wide, reset_less=True)
        empty = Signal(reset_less=True)
        checked = Signal.like(Value.cast(self.o.payload), reset_less=True)
        decision = data.View(checked_layout(self.address_bits), checked)
        outside = Signal()
        m.d.comb += outside.eq(offset[-1] | slack[-1] | last[-1] | (offset > slack))
        with m.If(control.enable):
            m.d.sync += [
                address.eq(command.address),
                last.eq(command.address + command.bytes - 1),
                offset.eq(command.address - self.window_base),
                slack.eq(self.window_bytes - command.bytes),
                empty.eq(command.bytes == 0),
                decision.address.eq(address),
                decision.last.eq(last),
                decision.empty.eq(empty),
                decision.refused.eq(outside & ~empty),
            ]
        m.d.comb += Value.cast(self.o.payload).eq(checked)
        return m
