"""What a run of a compiled component yields, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]


class CosimError(RuntimeError):
    """A compiled component misbehaved or could not be built."""


class CosimBuildError(CosimError):
    """The C++ compiler failed; the message ends with what it said."""


class CosimDeadlock(CosimError):
    """Nothing moved for `max_idle_cycles`; the message lists the ports that waited."""


class CosimSurplus(CosimError):
    """An output sent more beats than expected; `beats` is their words, uint32 [surplus, words]."""

    def __init__(self, message: str, port: str, beats: Words) -> None:
        super().__init__(message)
        self.port = port
        self.beats = beats


class CosimContractError(CosimError):
    """An output withdrew `valid` or changed its payload before the beat was taken."""


@dataclass(frozen=True)
class PortStats:
    """Traffic of one stream in a run; cycles count from the run's first clock edge, which is 0.

    Args:
        transfers: beats that moved.
        first_cycle, last_cycle: of the first and last transfer; None without one.
        blocked_cycles: valid but not ready. Input: the component held the source up; output: the sink
            held the component up.
        starved_cycles: ready but not valid while beats were due. Input: the source paused; output: the
            component had nothing.

    """

    transfers: int
    first_cycle: int | None
    last_cycle: int | None
    blocked_cycles: int
    starved_cycles: int


@dataclass(frozen=True)
class FlagStats:
    """Activity of a plain 1-bit output in a run; first and last are None if it was never high."""

    high_cycles: int
    first_high_cycle: int | None
    last_high_cycle: int | None


@dataclass(frozen=True)
class RunResult:
    """Result of `CompiledComponent.run`.

    Args:
        outputs: beats by output stream, uint32 [beats, words].
        cycles: clock edges up to and including the last expected transfer (drain cycles left out).
        ports: traffic of every stream.
        flags: activity of every plain 1-bit output within `cycles`.
        signals: value of every plain output in the last of `cycles`.

    """

    outputs: dict[str, Words]
    cycles: int
    ports: dict[str, PortStats]
    flags: dict[str, FlagStats]
    signals: dict[str, int]
