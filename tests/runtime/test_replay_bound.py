"""The bracket of the offline optimum: against exhaustive search, against the oracle, and for its rules."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.replay import replay
from nearkv.experiments.replay_bound import PlacementProblem, best_placement, churn_bound
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import kv_head_streams
from nearkv.policy.base import StreamInfo
from nearkv.policy.registry import build_policy
from nearkv.trace.format import read_trace

DATA = Path(__file__).resolve().parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"


def searched(problem: PlacementProblem) -> float:
    """The optimum, by going through every set of every step."""
    steps, tokens = problem.value.shape
    best: dict[frozenset[int], float] = {}
    for step in range(steps):
        free = np.flatnonzero(problem.free_from <= step).tolist()
        sets = [
            frozenset(chosen)
            for size in range(min(int(problem.capacity[step]), len(free)) + 1)
            for chosen in combinations(free, size)
        ]
        new = frozenset(np.flatnonzero(problem.free_from == step).tolist())
        now = {}
        for chosen in sets:
            worth = float(sum(problem.value[step, token] for token in chosen))
            before = [
                value for hot, value in best.items() if len(chosen - hot - new) <= problem.max_changes[step]
            ]
            if step == 0:
                now[chosen] = worth
            elif before:
                now[chosen] = worth + max(before)
        best = now
    assert tokens <= 8
    return max(best.values())


def problem_of(seed: int) -> PlacementProblem:
    """Values of which few are large, some tokens free later, one never, capacities and limits that vary."""
    rng = np.random.default_rng(seed)
    steps, tokens = 6, 7
    free_from = np.zeros(tokens, np.int64)
    free_from[-3:] = [2, 4, steps]
    return PlacementProblem(
        rng.exponential(size=(steps, tokens)).astype(np.float32) ** 2,
        free_from,
        rng.integers(1, 4, steps),
        rng.integers(0, 3, steps),
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_lies_in_the_bracket(seed):
    problem = problem_of(seed)
    found, exact = best_placement(problem, iterations=400), searched(problem)
    assert found.placed <= exact * (1 + 1e-6)
    assert exact <= found.upper * (1 + 1e-6)
    assert found.upper <= exact * 1.001
    assert found.placed >= exact * 0.999


def check_rules(problem: PlacementProblem, hot: np.ndarray) -> None:
    for step, row in enumerate(hot):
        assert row.sum() <= problem.capacity[step]
        assert not row[problem.free_from > step].any()
        if step:
            entered = row & ~hot[step - 1] & (problem.free_from != step)
            assert entered.sum() <= problem.max_changes[step]


@pytest.mark.parametrize("seed", range(12))
def test_the_placement_keeps_the_rules(seed):
    problem = problem_of(seed)
    found = best_placement(problem, iterations=20)
    check_rules(problem, found.hot)
    assert found.placed == pytest.approx(problem.value[found.hot].sum())


def test_by_hand():
    """One slot, two tokens: token 1 is worth more in steps 1 and 2, token 0 otherwise."""
    value = np.array([[3, 0], [1, 2], [0, 5], [2, 1]], np.float32)
    problem = PlacementProblem(value, np.zeros(2, np.int64), np.ones(4, np.int64), np.ones(4, np.int64))
    found = best_placement(problem, iterations=400)
    assert found.placed == 3 + 2 + 5 + 2
    assert np.argmax(found.hot, axis=1).tolist() == [0, 1, 1, 0]
    assert found.upper == pytest.approx(12, rel=0.01)
    none = PlacementProblem(value, np.zeros(2, np.int64), np.ones(4, np.int64), np.zeros(4, np.int64))
    assert best_placement(none, iterations=400).placed == 0 + 2 + 5 + 1


PROTOCOL = ReplayProtocol(warmup_steps=64, scored_steps=64)


@pytest.fixture(scope="module")
def stream():
    return list(kv_head_streams(read_trace(DATA)))[2]


def test_with_no_limit_it_is_the_oracle(stream):
    oracle = build_policy("oracle", StreamInfo(0, 0, 4096), {})
    kept = replay(stream, {"oracle": oracle}, PROTOCOL)["oracle"].mass_kept.mean()
    placed, upper = churn_bound(stream, PROTOCOL, 1.0)
    assert kept - 1e-4 < placed < kept + 1e-6
    assert upper > kept - 1e-6


def test_more_changes_never_keep_less_and_no_policy_keeps_more(stream):
    brackets = [churn_bound(stream, PROTOCOL, churn) for churn in (0.0, 0.01, 0.05, 0.2)]
    for (placed, upper), (placed_next, _) in pairwise(brackets):
        assert placed < placed_next
        assert placed <= upper
    policy = build_policy("forecast", StreamInfo(20, 0, 4096), {"max_churn": 0.05})
    kept = replay(stream, {"forecast": policy}, PROTOCOL)["forecast"]
    placed, upper = brackets[2]
    assert kept.mass_kept.mean() < placed
    assert upper - placed < 0.001
