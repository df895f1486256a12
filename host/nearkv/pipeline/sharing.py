"""Fair shares of links and memories: how fast tasks run that need parts of several resources.

Dominant resource fairness (Ghodsi et al., NSDI 2011): the largest share that each task takes of any resource
grows alike for all, until one of its resources is full or it runs at full speed. A transfer that needs an
eighth of a link is thus not held up by one that could fill it, as with packets in turn.

Integers in units of 1/WHOLE; demands are rounded up and speeds down, so that no resource is ever asked for
more than it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

WHOLE = 1 << 40  # all of a resource, or a task's full speed; rounding costs 1 ps per second of work


def fair_speeds(demands: Mapping[int, Mapping[str, int]]) -> dict[int, int]:
    """Speeds of tasks that run side by side, 0 to WHOLE each.

    Args:
        demands: by task and resource, what it needs at full speed, above 0, to WHOLE.

    """
    largest = {task: max(demand.values(), default=0) for task, demand in demands.items()}
    given = dict.fromkeys(demands, 0)  # of the resource that a task needs most of
    free = {name: WHOLE for demand in demands.values() for name in demand}
    growing = {task for task, most in largest.items() if most}
    while growing:
        needed: Counter[str] = Counter()  # of each resource, per WHOLE that every task's largest share grows
        for task in growing:
            for name, share in demands[task].items():
                needed[name] += -(-share * WHOLE // largest[task])
        room = {name: free[name] * WHOLE // need for name, need in needed.items()}
        growth = min(min(room.values()), min(largest[task] - given[task] for task in growing))
        full = {name for name, most in room.items() if most == growth}
        for name, need in needed.items():
            free[name] -= -(-need * growth // WHOLE)
        for task in list(growing):
            given[task] += growth
            if given[task] == largest[task] or not full.isdisjoint(demands[task]):
                growing.remove(task)
    return {
        task: given[task] * WHOLE // most if most else WHOLE
        for task, most in largest.items()
        if given[task] or not most
    }
