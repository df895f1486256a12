"""A deterministic list schedule over the resources of a machine, and bounds to judge it by.

A task that runs alone takes `time_ps` and needs the share busy/time of each of its resources. Whenever a task
ends, speeds are set anew: a processor does one task at a time, to its end; of those that wait for it, the
one with the longest chain behind it goes next, ties in the order given. Links and memories are shared by all
tasks that have begun or may begin (`sharing`). No resource does more than it can, so that no schedule is
faster than its busiest resource.

Bound: the longest chain, and for every resource its whole load plus the shortest chain before any of its
tasks and the shortest one behind any of them. No schedule of these tasks is shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nearkv.pipeline.fluid import Fluid
from nearkv.pipeline.task import Task, TaskSpan


@dataclass(frozen=True)
class Schedule:
    """Start and end of every task.

    Attributes:
        tasks: as given.
        start_ps, end_ps: of each task.
        spans: by resource and time, for a timeline.
        busy_ps: load of every resource.
        bound_ps: no schedule is shorter.
        serial_ps: all tasks one after the other: the baseline without overlap.

    """

    tasks: tuple[Task, ...]
    start_ps: tuple[int, ...]
    end_ps: tuple[int, ...]
    spans: tuple[TaskSpan, ...]
    busy_ps: Mapping[str, int]
    bound_ps: int
    serial_ps: int

    @property
    def time_ps(self) -> int:
        """Until the last task has ended."""
        return max(self.end_ps)

    @property
    def busiest(self) -> str:
        """Resource with the largest load."""
        return max(self.busy_ps, key=lambda name: self.busy_ps[name])

    def utilisation(self) -> dict[str, float]:
        """Share of the time for which each resource is occupied."""
        return {name: busy / self.time_ps for name, busy in self.busy_ps.items()}

    def stalls_ps(self, resource: str) -> dict[str, int]:
        """Who it waited for: idle time of a resource before its tasks, by the name of what they waited for.

        Raises:
            ValueError: a resource without tasks.

        """
        spans = [span for span in self.spans if span.resource == resource]
        if not spans:
            raise ValueError(f"resource is {resource!r}; allowed: {', '.join(self.busy_ps)}")
        found: Counter[str] = Counter()
        free_ps = 0
        for span in spans:
            if span.start_ps > free_ps:
                found[span.waits_for.rpartition(".")[2]] += span.start_ps - free_ps
            free_ps = max(free_ps, span.end_ps)
        return dict(found)


def schedule(tasks: Sequence[Task], processors: Iterable[str] = ()) -> Schedule:
    """Place every task.

    Args:
        tasks: each behind those it waits for.
        processors: resources that do one task at a time; all others are shared.

    Raises:
        ValueError: no task, one that waits for itself or a later one, takes no time, or occupies a resource
            for longer than it takes.

    """
    _check(tasks)
    tails = _tails(tasks)
    start_ps, end_ps, waits_for = Fluid(tasks, tails, frozenset(processors)).run()
    spans = [
        TaskSpan(resource, task.name, task.layer, task.step, start_ps[index], end_ps[index], waits_for[index])
        for index, task in enumerate(tasks)
        for resource in task.timing.busy_ps
    ]
    busy_ps: Counter[str] = Counter()
    for task in tasks:
        busy_ps.update(task.timing.busy_ps)
    result = Schedule(
        tuple(tasks),
        tuple(start_ps),
        tuple(end_ps),
        tuple(sorted(spans, key=lambda span: (span.resource, span.start_ps, span.end_ps))),
        dict(busy_ps),
        _bound_ps(tasks, tails),
        sum(task.timing.time_ps for task in tasks),
    )
    if result.time_ps < result.bound_ps:
        raise AssertionError(f"schedule of {result.time_ps} ps is below its bound of {result.bound_ps} ps")
    return result


def _check(tasks: Sequence[Task]) -> None:
    if not tasks:
        raise ValueError("tasks is empty; allowed: at least one")
    for index, task in enumerate(tasks):
        wrong = [before for before in task.after if not 0 <= before < index]
        if wrong:
            raise ValueError(f"{task.label} is task {index} and waits for {wrong[0]}; allowed: earlier tasks")
        if task.timing.time_ps < 1:
            raise ValueError(f"{task.label} takes {task.timing.time_ps} ps; allowed: from 1")
        for resource, busy in task.timing.busy_ps.items():
            if not 0 <= busy <= task.timing.time_ps:
                raise ValueError(
                    f"{task.label} occupies {resource} for {busy} ps; allowed: 0 to its {task.timing.time_ps}"
                )


def _tails(tasks: Sequence[Task]) -> list[int]:
    """Longest chain from each task's end to the end of all."""
    tails = [0] * len(tasks)
    for index in reversed(range(len(tasks))):
        chain_ps = tails[index] + tasks[index].timing.time_ps
        for before in tasks[index].after:
            tails[before] = max(tails[before], chain_ps)
    return tails


def _bound_ps(tasks: Sequence[Task], tails: Sequence[int]) -> int:
    heads: list[int] = []
    for task in tasks:
        heads.append(max((heads[i] + tasks[i].timing.time_ps for i in task.after), default=0))
    bound = max(h + t.timing.time_ps + tail for h, t, tail in zip(heads, tasks, tails, strict=True))
    load: Counter[str] = Counter()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for task, head, tail in zip(tasks, heads, tails, strict=True):
        for resource, busy in task.timing.busy_ps.items():
            load[resource] += busy
            first[resource] = min(first.get(resource, head), head)
            last[resource] = min(last.get(resource, tail), tail)
    return max([bound, *(first[name] + busy + last[name] for name, busy in load.items())])
