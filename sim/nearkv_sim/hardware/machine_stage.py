"""Stages of a transfer: parts of a machine as functions from bytes to time.

A stage consists of `count` equal devices that share a transfer evenly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearkv.machine import Timing
from nearkv_sim.hardware.link_pipe import PS_PER_S

# Simulated transfers of which each cache keeps the time: a run that asks for ever new sizes must not grow.
REMEMBERED_TRANSFERS = 4096
# What stages hand on to each other.
PIECE_BYTES = 4096


@dataclass(frozen=True)
class Stage(ABC):
    """Something that a transfer passes through.

    Attributes:
        name: of the resource.
        count: equal devices.
        pj_per_byte: energy of a byte that passes.

    """

    name: str
    count: int
    pj_per_byte: float

    def time_ps(self, nbytes: int) -> int:
        """Time from the first byte's arrival to the last byte's departure; nbytes from 1."""
        share = -(-nbytes // self.count)
        time_ps = self._time_ps(share)
        if share * PS_PER_S > self.bound_bytes_per_s * time_ps:
            raise AssertionError(f"{self.name} carries {share} bytes in {time_ps} ps: above its bound")
        return time_ps

    @property
    @abstractmethod
    def bound_bytes_per_s(self) -> int:
        """Rate that no transfer through one device exceeds."""

    @abstractmethod
    def _time_ps(self, nbytes: int) -> int:
        """Time of one device's share."""


@dataclass(frozen=True)
class RateStage(Stage):
    """Latency and bandwidth."""

    latency_ps: int
    bandwidth_bytes_per_s: int

    @property
    def bound_bytes_per_s(self) -> int:
        """The bandwidth."""
        return self.bandwidth_bytes_per_s

    def _time_ps(self, nbytes: int) -> int:
        return self.latency_ps - (-nbytes * PS_PER_S // self.bandwidth_bytes_per_s)


def continued_ps(walk: Callable[[int], int], nbytes: int, walked_bytes: int) -> int:
    """Time of a long transfer of which only the beginning is simulated.

    Args:
        walk: simulates a transfer from its first byte, in ps.
        nbytes: whole transfer.
        walked_bytes: longest that is simulated; what follows takes as long per byte as the second half.

    """
    if nbytes <= walked_bytes:
        return walk(nbytes)
    full_ps, half_ps = walk(walked_bytes), walk(walked_bytes // 2)
    return full_ps - (-(nbytes - walked_bytes) * (full_ps - half_ps) // (walked_bytes // 2))


def pipelined(busy_ps: Mapping[str, int], stages: Sequence[Stage], nbytes: int) -> Timing:
    """Stages side by side: the longest for everything, every other for one piece.

    Args:
        busy_ps: each stage's time for the whole, by name.
        stages: in order.
        nbytes: what is moved.

    """
    fill = {stage.name: stage.time_ps(min(nbytes, PIECE_BYTES)) for stage in stages}
    longest = max(busy_ps, key=lambda stage: busy_ps[stage])
    return Timing(busy_ps[longest] + sum(fill.values()) - fill[longest], nbytes, busy_ps)
