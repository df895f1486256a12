"""Simulated time of the migration engine: integer picoseconds, events in the order of their time."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable


class Event:
    """A call that is due at `time_ps`; `cancel` makes the clock pass over it."""

    def __init__(self, time_ps: int, action: Callable[[], None]) -> None:
        self.time_ps = time_ps
        self.cancelled = False
        self._action = action

    def cancel(self) -> None:
        """Never call the action. What has been called already stays called."""
        self.cancelled = True

    def fire(self) -> None:
        """Call the action."""
        self._action()


class Clock(ABC):
    """Time as the engine sees it. Actions are called from `run_next` and `advance`, one at a time."""

    @property
    @abstractmethod
    def now_ps(self) -> int:
        """Time, from 0; it never goes back."""

    @abstractmethod
    def at(self, time_ps: int, action: Callable[[], None]) -> Event:
        """Call `action` at a time; ValueError for one that has passed."""

    @abstractmethod
    def run_next(self) -> bool:
        """Go to the next event and call it; False, and nothing happens, if there is none."""

    @abstractmethod
    def advance(self, duration_ps: int) -> None:
        """Let time pass and call what becomes due in it; ValueError for a negative duration."""


class SimulatedClock(Clock):
    """Deterministic: events of one time are called in the order in which they were asked for."""

    def __init__(self) -> None:
        self._now_ps = 0
        self._count = 0
        self._events: list[tuple[int, int, Event]] = []

    @property
    def now_ps(self) -> int:
        """Time of the last event called, or the end of the last `advance`."""
        return self._now_ps

    def at(self, time_ps: int, action: Callable[[], None]) -> Event:
        """Call `action` at a time, that of now included."""
        if time_ps < self._now_ps:
            raise ValueError(f"time_ps is {time_ps}; allowed: from now, {self._now_ps}")
        event = Event(time_ps, action)
        self._count += 1
        heapq.heappush(self._events, (time_ps, self._count, event))
        return event

    def run_next(self) -> bool:
        """Call the earliest event that is not cancelled."""
        self._drop_cancelled()
        if not self._events:
            return False
        self._now_ps, _, event = heapq.heappop(self._events)
        event.fire()
        return True

    def advance(self, duration_ps: int) -> None:
        """Call everything that is due up to and at the end of the duration."""
        if duration_ps < 0:
            raise ValueError(f"duration_ps is {duration_ps}; allowed: from 0")
        end_ps = self._now_ps + duration_ps
        self._drop_cancelled()
        while self._events and self._events[0][0] <= end_ps:
            self.run_next()
            self._drop_cancelled()
        self._now_ps = end_ps

    def _drop_cancelled(self) -> None:
        while self._events and self._events[0][2].cancelled:
            heapq.heappop(self._events)
