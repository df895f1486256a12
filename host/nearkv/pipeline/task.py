"""Tasks of a schedule, and the spans of a timeline."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.machine import Timing


@dataclass(frozen=True)
class Task:
    """Work on some resources.

    Attributes:
        name: what it does, such as score_cold.
        step, layer: of the decode; layer is the model's number of layers for what follows the last one.
        timing: how long, and what it occupies for how long, at most its whole time.
        after: indices of tasks that must have ended; all are smaller than its own.

    """

    name: str
    step: int
    layer: int
    timing: Timing
    after: tuple[int, ...]

    @property
    def label(self) -> str:
        """Unique in a schedule: step.layer.name."""
        return f"{self.step}.{self.layer}.{self.name}"


@dataclass(frozen=True)
class TaskSpan:
    """One task on one of its resources.

    Attributes:
        resource: its name in the machine.
        name, layer, step: of the task.
        start_ps, end_ps: of the task; it may share the resource with others meanwhile.
        waits_for: label of the task whose end let it start: one it depends on, or one that had taken all of a
            resource; "" at time 0.

    """

    resource: str
    name: str
    layer: int
    step: int
    start_ps: int
    end_ps: int
    waits_for: str
