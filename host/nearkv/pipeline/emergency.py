"""Emergency mode: what the first article does beyond 20 sequences.

Seed article on HillInfer, section on bursts: batch above 20 raises select_fraction to 15–25 %, scores in INT4
and keeps the links below 70 %. It names no way back; here the mode is left at a smaller batch than it is
entered, and after some steps at least, so that a batch that hovers around the limit does not switch at every
step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nearkv.pipeline.settings import PipelineSettings

CODE_BITS = 4
LINK_CAP = 0.70
SELECT_RANGE = (0.15, 0.25)


@dataclass(frozen=True, kw_only=True)
class EmergencyLimits:
    """When the mode is entered and left.

    Attributes:
        enter_above: largest batch in normal operation.
        leave_at: batch at or below which it is left, below enter_above.
        least_steps: that it lasts.

    ValueError for limits without hysteresis or below 1.

    """

    enter_above: int = 20
    leave_at: int = 16
    least_steps: int = 8

    def __post_init__(self) -> None:
        """Check the order of the limits."""
        if not 1 <= self.leave_at < self.enter_above:
            raise ValueError(
                f"leave_at is {self.leave_at!r} and enter_above {self.enter_above!r}; allowed: leave_at"
                " from 1, below enter_above"
            )
        if self.least_steps < 1:
            raise ValueError(f"least_steps is {self.least_steps!r}; allowed: from 1")


class EmergencyMode:
    """Whether the mode is on, step by step.

    Attributes:
        limits: when it is entered and left.
        active: now.
        entered: how often so far.

    """

    def __init__(self, limits: EmergencyLimits | None = None) -> None:
        """Off."""
        self.limits = limits or EmergencyLimits()
        self.active = False
        self.entered = 0
        self._steps = 0

    def settings(self, batch: int, normal: PipelineSettings) -> PipelineSettings:
        """Settings of a step with `batch` sequences; called once per step.

        Raises:
            ValueError: a batch below 1.

        """
        if batch < 1:
            raise ValueError(f"batch is {batch!r}; allowed: from 1")
        self._steps += 1
        if not self.active and batch > self.limits.enter_above:
            self.active, self._steps = True, 0
            self.entered += 1
        elif self.active and batch <= self.limits.leave_at and self._steps >= self.limits.least_steps:
            self.active = False
        if not self.active:
            return normal
        least, most = SELECT_RANGE
        return replace(
            normal,
            select_fraction=max(least, min(normal.select_fraction, most)),
            code_bits=CODE_BITS,
            link_cap=min(normal.link_cap, LINK_CAP),
        )
