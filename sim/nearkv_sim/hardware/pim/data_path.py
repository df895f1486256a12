"""The data path beside the banks that moves to and from the units share with each other, not with MACs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nearkv_sim.hardware.dram.config import DramConfig
from nearkv_sim.hardware.pim.schedule import Move

_LONG_AGO = -(10**9)


class Choice(NamedTuple):
    """Which of several moves goes next, and when."""

    place: int
    cycle: int


class DataPath:
    """Distances between moves: t_bl on the path, t_ccd_s within a rank, t_ccd_l within a bank group."""

    def __init__(self, dram: DramConfig) -> None:
        self._dram = dram
        self._any = _LONG_AGO
        self._rank = [_LONG_AGO] * dram.ranks
        self._group = [[_LONG_AGO] * dram.groups for _ in range(dram.ranks)]

    def choose(self, moves: Sequence[Move], window: int, earliest: int) -> Choice:
        """The move among the first `window` that can go first, the oldest of equals, from `earliest` on."""
        dram = self._dram
        free = max(earliest, self._any + dram.t_bl)
        best = Choice(-1, 1 << 62)
        previous = None
        for index in range(min(window, len(moves))):
            move = moves[index]
            if move is previous:  # repeated moves are one object
                continue
            previous, rank, group = move, move.rank, move.group
            cycle = max(free, self._rank[rank] + dram.t_ccd_s, self._group[rank][group] + dram.t_ccd_l)
            if cycle == free:
                return Choice(index, cycle)
            if cycle < best.cycle:
                best = Choice(index, cycle)
        return best

    def issue(self, move: Move, cycle: int) -> None:
        """Note a move."""
        self._any = self._rank[move.rank] = self._group[move.rank][move.group] = cycle
