"""Tasks under way: who runs, how fast, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nearkv.pipeline.sharing import WHOLE, fair_speeds
from nearkv.pipeline.task import Task


class Fluid:
    """Runs tasks whose order of preference is the length of the chain behind them, `tails`."""

    def __init__(self, tasks: Sequence[Task], tails: Sequence[int], processors: frozenset[str]) -> None:
        self.tasks, self.processors = tasks, processors
        order = sorted(range(len(tasks)), key=lambda index: (-tails[index], index))
        self.rank = {index: rank for rank, index in enumerate(order)}
        self.demand = [
            {
                name: -(-busy * WHOLE // task.timing.time_ps)
                for name, busy in task.timing.busy_ps.items()
                if busy
            }
            for task in tasks
        ]
        self.left = [task.timing.time_ps * WHOLE for task in tasks]
        self.missing = [len(set(task.after)) for task in tasks]
        self.followers: list[list[int]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for before in set(task.after):
                self.followers[before].append(index)
        self.start_ps, self.end_ps, self.waits_for = [-1] * len(tasks), [0] * len(tasks), [""] * len(tasks)

    def run(self) -> tuple[list[int], list[int], list[str]]:
        """From time 0 until nothing is left: start, end and what was waited for, of each task."""
        now_ps, ended = 0, ""
        ready = {index: 0 for index, count in enumerate(self.missing) if not count}  # since when
        while ready:
            speeds = self._speeds(ready)
            for index in speeds:
                if self.start_ps[index] < 0:
                    self.start_ps[index] = now_ps
                    if now_ps > ready[index]:  # something that it shares a resource with had to end
                        self.waits_for[index] = ended
            step_ps = min(-(-self.left[index] // speed) for index, speed in speeds.items())
            now_ps += step_ps
            for index, speed in speeds.items():
                self.left[index] -= speed * step_ps
            for index in [index for index in speeds if self.left[index] <= 0]:
                del ready[index]
                self.end_ps[index], ended = now_ps, self.tasks[index].label
                for follower in self.followers[index]:
                    self.missing[follower] -= 1
                    if not self.missing[follower]:
                        ready[follower] = now_ps
                        self.waits_for[follower] = ended
        return self.start_ps, self.end_ps, self.waits_for

    def _speeds(self, ready: Iterable[int]) -> dict[int, int]:
        """Of all tasks whose processors are free or already theirs."""
        running = {}
        taken: set[str] = set()
        for index in sorted(ready, key=lambda task: (self.start_ps[task] < 0, self.rank[task])):
            own = self.processors.intersection(self.demand[index])
            if taken.isdisjoint(own):
                taken |= own
                running[index] = self.demand[index]
        return fair_speeds(running)
