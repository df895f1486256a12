"""Register ranks of an arithmetic pipeline with a clock enable."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value


class Ranks:
    """Registers named values rank by rank, without reset, and counts the ranks.

    Args:
        m: module that gets the registers, in its domain `sync`.
        enable: one bit; without it every rank keeps its values.

    Attributes:
        count: ranks so far, the latency in enabled cycles of what the last one returned.

    """

    def __init__(self, m: Module, enable: Value) -> None:
        self._m = m
        self._enable = enable
        self.count = 0

    def __call__(self, **values: Value) -> dict[str, Signal]:
        """The values one rank later, by name."""
        self.count += 1
        registers = {}
        for name, value in values.items():
            register = Signal(Value.cast(value).shape(), name=f"{name}{self.count}", reset_less=True)
            with self._m.If(self._enable):
                self._m.d.sync += register.eq(value)
            registers[name] = register
        return registers
