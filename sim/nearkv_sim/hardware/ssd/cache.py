"""The controller's DRAM: recently used keys, and writes that are not yet in NAND."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from nearkv_sim.hardware.ssd.ftl import Stamp

__all__ = ["RecentKeys", "WriteBuffer"]


class RecentKeys:
    """A set of at most `capacity` keys that forgets the least recently used one."""

    def __init__(self, capacity: int) -> None:
        """Hold nothing; with capacity 0 for ever."""
        self._capacity = capacity
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def use(self, key: Hashable) -> bool:
        """Whether the key is held; a held key becomes the most recent one."""
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def add(self, key: Hashable) -> None:
        """Hold the key as the most recent one."""
        if not self._capacity:
            return
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > self._capacity:
            self._keys.popitem(last=False)

    def discard(self, key: Hashable) -> None:
        """Forget the key."""
        self._keys.pop(key, None)


class WriteBuffer:
    """Units that wait for a program, and units in one that has not finished: newest versions only."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._waiting: OrderedDict[int, Stamp] = OrderedDict()
        self._programming: dict[int, Stamp] = {}

    def __contains__(self, unit: int) -> bool:
        """Whether a read of the unit is served from here."""
        return unit in self._waiting or unit in self._programming

    @property
    def waiting(self) -> int:
        """Units that no program has taken yet."""
        return len(self._waiting)

    def put(self, unit: int, stamp: Stamp) -> bool:
        """Hold a new version; whether it took the place of one that was still waiting."""
        replaced = unit in self._waiting
        self._waiting[unit] = stamp
        return replaced

    def drop(self, unit: int) -> bool:
        """Forget a version that no program has taken yet; whether there was one."""
        return self._waiting.pop(unit, None) is not None

    def take(self, count: int) -> list[tuple[int, Stamp]]:
        """Hand up to `count` of the oldest waiting units to a program."""
        taken = [self._waiting.popitem(last=False) for _ in range(min(count, len(self._waiting)))]
        self._programming.update(taken)
        return taken

    def programmed(self, units: list[tuple[int, Stamp]]) -> None:
        """Let go of units that are in NAND now."""
        for unit, stamp in units:
            if self._programming.get(unit) == stamp:
                del self._programming[unit]

    def newest(self) -> dict[int, Stamp]:
        """Everything held, in the order of the writes."""
        held = {**self._programming, **self._waiting}
        return dict(sorted(held.items(), key=lambda item: item[1].sequence))
