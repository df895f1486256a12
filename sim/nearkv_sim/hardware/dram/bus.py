"""A command bus: one command at a time, placed in the first free cycles from a wished one."""

from __future__ import annotations

from collections.abc import Iterable

_KEPT_CYCLES = 4096  # longer than any row cycle: a command is never placed that far in the past
_PRUNE_ABOVE = 8192


class CommandBus:
    """Free cycles of one bus. Commands are not placed in order of time: a bank is opened ahead of use."""

    def __init__(self) -> None:
        self._busy: set[int] = set()
        self._latest = 0

    def busy(self, cycle: int) -> bool:
        """Whether a command has the cycle."""
        return cycle in self._busy

    def taken(self) -> frozenset[int]:
        """Occupied cycles, of late."""
        return frozenset(self._busy)

    def occupy(self, cycles: Iterable[int]) -> None:
        """Note commands whose cycles are known to be free."""
        self._busy.update(cycles)

    def place(self, wish: int, length: int = 1) -> int:
        """Occupy the first `length` free cycles (1 or 2) from `wish`; returns the first of them."""
        busy = self._busy
        cycle = wish
        if length == 1:
            while cycle in busy:
                cycle += 1
        else:
            while True:
                if cycle + 1 in busy:
                    cycle += 2
                elif cycle in busy:
                    cycle += 1
                else:
                    break
            busy.add(cycle + 1)
        busy.add(cycle)
        self._latest = max(self._latest, cycle)
        if len(busy) > _PRUNE_ABOVE:
            oldest = self._latest - _KEPT_CYCLES
            self._busy = {kept for kept in busy if kept >= oldest}
        return cycle
