"""One published figure, the range that is accepted for ours, and how ours is measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Measure = Callable[[], float]


@dataclass(frozen=True)
class Check:
    """A published figure and the command to reproduce it. ValueError for an empty range or a missing source.

    Attributes:
        name: unique, with slashes from the general to the special: "smartssd/p2p_read/256KiB".
        unit: of all numbers here, "" for a ratio.
        published: what the source says; None for a bound on a summary (a root mean square, a median).
        low, high: accepted range of our value, ends included.
        source: who published the figure, or where the bound comes from.
        measure: runs the model; called once per validation.
        held_out: the figure was not used to choose any constant of the model.

    """

    name: str
    unit: str
    published: float | None
    low: float
    high: float
    source: str
    measure: Measure
    held_out: bool = True

    def __post_init__(self) -> None:
        """Refuse what can never fail or never pass."""
        if not self.low <= self.high or not math.isfinite(self.high - self.low):
            raise ValueError(f"{self.name}: range is {self.low} to {self.high}; allowed: finite, low <= high")
        if not self.source.strip():
            raise ValueError(f"{self.name}: source is empty; allowed: who published the figure")


@dataclass(frozen=True)
class Outcome:
    """A check with our value."""

    check: Check
    ours: float

    @property
    def ok(self) -> bool:
        """Whether ours lies in the accepted range; a NaN does not."""
        return self.check.low <= self.ours <= self.check.high

    @property
    def relative_error(self) -> float | None:
        """(ours − published) / published; None where nothing, or 0, was published."""
        if not self.check.published:
            return None
        return (self.ours - self.check.published) / self.check.published


def within(
    name: str,
    unit: str,
    published: float,
    relative_tolerance: float,
    source: str,
    measure: Measure,
    *,
    held_out: bool = True,
) -> Check:
    """Accept ours within published · (1 ± relative_tolerance)."""
    margin = abs(published) * relative_tolerance
    return Check(name, unit, published, published - margin, published + margin, source, measure, held_out)


def at_most(
    name: str, unit: str, bound: float, source: str, measure: Measure, *, held_out: bool = True
) -> Check:
    """Accept ours from 0 to `bound`: for errors summed up over many points, held out if all of them are."""
    return Check(name, unit, None, 0.0, bound, source, measure, held_out)


def run_check(check: Check) -> Outcome:
    """Measure ours."""
    return Outcome(check, float(check.measure()))
