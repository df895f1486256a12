"""What a move is: its states, and what the engine asks of the job behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nearkv.kvcache.clock import Event
from nearkv.kvcache.rows import Records, RowIndex


class MoveState(Enum):
    """Where a move is; the last four are final."""

    REGISTERED = "registered"  # waits for slots at its target
    QUEUED = "queued"  # waits for a staging buffer
    READING = "reading"  # source to staging buffer
    LANDED = "landed"  # checked; on its way to the target
    COMMITTED = "committed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing changes any more."""
        return self in _FINAL


_FINAL = (MoveState.COMMITTED, MoveState.FAILED, MoveState.TIMED_OUT, MoveState.CANCELLED)


class MoveJob(ABC):
    """What a move does; the engine decides when.

    Attributes:
        rows: addresses; fewer after `accept`.
        source: name of the tier read.
        target: name of the tier written; "any home" until `reserve` has chosen one.
        urgent: needs no slots, and passes others that wait for a staging buffer.

    """

    rows: RowIndex
    source: str
    target: str
    urgent = False

    @abstractmethod
    def reserve(self) -> bool:
        """Take slots at the target; False, with nothing changed, while there are too few."""

    @abstractmethod
    def gather(self) -> Records:
        """Records of `rows` as the source holds them now."""

    @abstractmethod
    def check(self, records: Records) -> NDArray[np.bool_]:
        """Which records are good."""

    @abstractmethod
    def accept(self, good: NDArray[np.bool_]) -> bool:
        """Go on with the good rows alone, after the second try; False if the job fails without the others."""

    @abstractmethod
    def scatter(self, records: Records) -> None:
        """Write records of `rows` to the target's slots."""

    @abstractmethod
    def make_room(self) -> bool:
        """The target had no space, whatever its counts say: give something up there; False if nothing."""

    @abstractmethod
    def settle(self, state: MoveState) -> None:
        """The move has ended: enter the new copies, or give the slots back."""


@dataclass(eq=False)
class Move:
    """A job on its way.

    Attributes:
        job: what it does.
        state: where it is.
        deadline_ps: when it times out.
        retried: whether its second try has begun.
        buffer: staging buffer that it owns.
        leg, deadline: events that end its leg, and the move.

    """

    job: MoveJob
    deadline_ps: int
    state: MoveState = MoveState.REGISTERED
    retried: bool = False
    buffer: int | None = None
    leg: Event | None = None
    deadline: Event | None = None
