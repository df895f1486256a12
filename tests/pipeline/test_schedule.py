"""The scheduler and its bound: by hand, on random graphs, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from nearkv.machine import Timing
from nearkv.pipeline.schedule import schedule
from nearkv.pipeline.sharing import WHOLE, fair_speeds
from nearkv.pipeline.task import Task


def task(name: str, time_ps: int, busy: dict[str, int], *after: int, layer: int = 0) -> Task:
    return Task(name, 0, layer, Timing(time_ps, 1, busy), after)


def test_two_stages_overlap_by_hand():
    """Fetch 10, compute 8, three layers: 10 + 10 + 10 + 8, the fetches one behind the other on their link."""
    tasks = []
    for layer in range(3):
        tasks.append(task("fetch", 10, {"link": 10}, *([2 * layer - 2] if layer else []), layer=layer))
        tasks.append(task("compute", 8, {"gpu": 8}, 2 * layer, layer=layer))
    done = schedule(tasks, ["gpu"])
    assert done.start_ps == (0, 10, 10, 20, 20, 30)
    assert done.time_ps == done.bound_ps == 38
    assert done.serial_ps == 54
    assert done.busiest == "link"
    assert done.utilisation() == {"link": 30 / 38, "gpu": 24 / 38}
    assert done.stalls_ps("gpu") == {"fetch": 10 + 2 + 2}
    assert [span.waits_for for span in done.spans if span.resource == "gpu"] == [
        "0.0.fetch",
        "0.1.fetch",
        "0.2.fetch",
    ]


def test_a_processor_does_one_task_at_a_time_and_keeps_it():
    """The second task has the longer chain but comes when the first has begun."""
    tasks = [
        task("short", 1, {"link": 1}),
        task("background", 10, {"gpu": 10}),
        task("urgent", 5, {"gpu": 5}, 0),
        task("rest", 20, {"cpu": 20}, 2),
    ]
    done = schedule(tasks, ["gpu", "cpu"])
    assert done.start_ps == (0, 0, 10, 15)
    waiting = next(span for span in done.spans if span.name == "urgent")
    assert waiting.waits_for == "0.0.background"


def test_a_shared_link_lets_a_slow_transfer_keep_its_pace():
    """A drive that fills an eighth of the link is hardly slowed by one that could fill it."""
    tasks = [
        task("hot", 1_600_000, {"link": 1_600_000}),
        task("cold", 1_600_000, {"link": 200_000, "drive": 1_600_000}),
    ]
    done = schedule(tasks)
    assert done.end_ps[0] == pytest.approx(1_800_000, rel=1e-4)
    assert done.end_ps[1] == pytest.approx(1_800_000, rel=1e-4)


def test_half_shares_run_side_by_side_within_their_bound():
    """Latency overlaps: two transfers that each need half of a link take as long as one."""
    done = schedule([task(name, 10, {"link": 5}) for name in "ab"])
    assert done.time_ps == done.bound_ps == 10
    assert schedule([task(name, 10, {"link": 6}) for name in "ab"]).bound_ps == 12


def test_fair_speeds_by_hand():
    alone = fair_speeds({0: {"a": WHOLE}})
    assert alone == {0: WHOLE}
    halves = fair_speeds({0: {"a": WHOLE}, 1: {"a": WHOLE}})
    assert halves == {0: WHOLE // 2, 1: WHOLE // 2}
    quarter = fair_speeds({0: {"a": WHOLE // 4}, 1: {"a": WHOLE}})
    assert quarter == {0: WHOLE, 1: WHOLE * 3 // 4}
    assert fair_speeds({0: {}}) == {0: WHOLE}


def random_graph(rng: random.Random) -> list[Task]:
    """Some graphs with tasks that fill a resource, some with small shares only."""
    tasks = []
    whole, most = rng.random() < 0.5, rng.randint(1, 5)
    for index in range(rng.randint(1, 40)):
        time_ps = rng.randint(1, 1000)
        names = rng.sample("abcdef", rng.randint(1, 3))
        least_share = rng.choice([0.0, 1.0]) if whole else 0.0
        busy = {name: max(rng.randint(0, time_ps // most), int(least_share * time_ps)) for name in names}
        after = sorted(rng.sample(range(index), min(index, rng.randint(0, 3))))
        tasks.append(task(f"t{index}", time_ps, busy, *after))
    return tasks


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_keep_order_capacity_and_bounds(seed):
    rng = random.Random(seed)
    tasks = random_graph(rng)
    processors = set(rng.sample("abcdef", 2))
    done = schedule(tasks, processors)
    assert done == schedule(tasks, processors)
    for index, each in enumerate(tasks):
        assert done.end_ps[index] - done.start_ps[index] >= each.timing.time_ps
        for before in each.after:
            assert done.start_ps[index] >= done.end_ps[before]
    assert done.bound_ps <= done.time_ps
    assert max(done.busy_ps.values()) <= done.bound_ps
    for name in processors:
        spans = [s for s in done.spans if s.resource == name and busy_of(tasks, s) > 0]
        assert sum(busy_of(tasks, span) for span in spans) == done.busy_ps.get(name, 0)
        assert all(left.end_ps <= right.start_ps for left, right in pairwise(spans))


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_takes_longer_than_one_task_after_the_other(seed):
    """Up to rounding: 1 ps per task, and 1 ps per second of work."""
    tasks = [
        replace(
            t,
            timing=replace(
                t.timing,
                time_ps=t.timing.time_ps * 10**12,
                busy_ps={k: v * 10**12 for k, v in t.timing.busy_ps.items()},
            ),
        )
        for t in random_graph(random.Random(seed))
    ]
    for processors in ((), "abcdef"):
        done = schedule(tasks, processors)
        seconds = done.serial_ps // 10**12
        assert done.bound_ps <= done.time_ps <= done.serial_ps + len(tasks) + seconds


def test_three_that_share_a_link_lose_nothing():
    done = schedule([task(name, 10**15, {"link": 10**15}) for name in "abc"])
    assert 3 * 10**15 <= done.time_ps <= 3 * 10**15 + 3_000


def busy_of(tasks: list[Task], span) -> int:
    return next(t for t in tasks if t.name == span.name).timing.busy_ps[span.resource]


@pytest.mark.parametrize("seed", range(20))
def test_no_resource_gives_more_than_it_has(seed):
    rng = random.Random(seed)
    demands = {
        index: {name: rng.randint(1, WHOLE) for name in rng.sample("abcd", rng.randint(1, 3))}
        for index in range(rng.randint(1, 8))
    }
    speeds = fair_speeds(demands)
    for name in "abcd":
        assert sum(speeds.get(i, 0) * d.get(name, 0) for i, d in demands.items()) <= WHOLE * WHOLE
    for index, demand in demands.items():  # nobody could be faster without taking from another
        full = [
            name
            for name in demand
            if sum(speeds.get(i, 0) * d.get(name, 0) for i, d in demands.items()) > 0.9999 * WHOLE * WHOLE
        ]
        assert full or speeds[index] == WHOLE


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([], "tasks is empty"),
        ([task("a", 1, {}, 0)], "0.0.a is task 0 and waits for 0; allowed: earlier tasks"),
        ([task("a", 0, {})], "0.0.a takes 0 ps; allowed: from 1"),
        ([task("a", 1, {"x": 2})], "occupies x for 2 ps; allowed: 0 to its 1"),
    ],
)
def test_impossible_tasks_are_refused(tasks, message):
    with pytest.raises(ValueError, match=message):
        schedule(tasks)


def test_stalls_of_an_unknown_resource_are_refused():
    with pytest.raises(ValueError, match="resource is 'tpu'; allowed: gpu"):
        schedule([task("a", 1, {"gpu": 1})]).stalls_ps("tpu")
