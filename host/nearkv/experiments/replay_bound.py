"""The best placement that knows the future, under a limit on how many tokens a step may make hot.

Choose sets x_t of at most C_t tokens, with at most B_t that were not in x_(t−1), that hold the most attention
Σ_t w_t(x_t). Think of the pool's slots as units of flow: in step t a slot stays at its token, or changes to
another token over one arc of capacity B_t; a token takes one slot at most. So this is a minimum-cost flow,
its linear programme has an integral optimum, and the Lagrangian dual has no gap.

The dual prices a slot at μ_t and a change at λ_t. At given prices every token is on its own, and a backward
pass finds for each the best steps to be hot. For any prices ≥ 0 the value is an upper bound (up to float32
rounding); prices are improved by steps along the subgradient, how far supply exceeds demand. At the best
prices the same pass says what being hot is worth to each token, and keeping the worthiest, within the limits,
gives a real placement. The optimum lies between the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import Float32, Int64, ReplayStream
from nearkv.policy.base import Float64, Mask
from nearkv.policy.ranking import highest, top_lowest_index

ITERATIONS = 30  # bound and placement of docs/policy-results.md then differ by less than 0.0003
FIRST_STEP_SIZE = 0.3  # of the logarithm of a price
CHANGE_PRICE = 5.0  # of the first guess, in prices of a slot: about the steps that a token stays
AVERAGE = 0.9  # of the squared subgradient, which sets a price's own step size
FLOOR = 1e-4  # of that average


@dataclass(frozen=True)
class PlacementProblem:
    """What is to be placed.

    Attributes:
        value: float32 [steps, tokens], attention that the token holds, at least 0.
        free_from: int64 [tokens], the first step in which the token is placed: 0 for one that may be hot or
            cold before the first step for nothing, t for one that is hot for another reason up to step t−1,
            and `steps` for one that is never placed.
        capacity: int64 [steps], placed tokens that may be hot, at least 1.
        max_changes: int64 [steps], how many of them may have been cold in the step before; not used in
            step 0.

    """

    value: Float32
    free_from: Int64
    capacity: Int64
    max_changes: Int64


@dataclass(frozen=True)
class PlacementBound:
    """The optimum lies between `placed`, which `hot` bool [steps, tokens] attains, and `upper`: sums."""

    upper: float
    placed: float
    hot: Mask


def best_placement(problem: PlacementProblem, iterations: int = ITERATIONS) -> PlacementBound:
    """Bracket the optimum. Each iteration is a pass over all steps and tokens."""
    steps = len(problem.value)
    slot, change = _first_prices(problem)
    squares = np.zeros((2, steps))
    upper, best = math.inf, (slot, change)
    for iteration in range(iterations):
        dual, used, changed = _dual(problem, slot, change)
        if dual < upper:
            upper, best = dual, (slot, change)
        supply = np.stack([problem.capacity, problem.max_changes])
        excess = (supply - np.stack([used, changed])) / np.maximum(supply, 1)
        excess[1, 0] = 0
        np.clip(excess, -3, 1, out=excess)
        squares = AVERAGE * squares + (1 - AVERAGE) * excess**2
        move = FIRST_STEP_SIZE / math.sqrt(1 + iteration) * excess / np.sqrt(squares + FLOOR)
        slot, change = slot * np.exp(-move[0]), change * np.exp(-move[1])
    hot = _placement(problem, *best)
    placed = float(problem.value[hot].sum(dtype=np.float64))
    return PlacementBound(upper, placed, hot)


def churn_bound(stream: ReplayStream, protocol: ReplayProtocol, max_churn: float) -> tuple[float, float]:
    """Best attention mass kept, mean over the scored steps, if a step replaces at most max_churn of the pool.

    Returns (what a real placement keeps, upper bound). The pool's contents before the first scored step are
    free to choose, which no policy's are.
    """
    first = protocol.first_step(stream) + protocol.warmup_steps
    weights = stream.weights(first, protocol.scored_steps)
    positions = stream.first_query_position + first + np.arange(len(weights))
    capacity = np.array([protocol.capacity_tokens(int(position) + 1) for position in positions])
    recent = protocol.recent_tokens
    # Hot for other reasons: the sinks, and a token until `recent` younger ones exist.
    free_from = np.maximum(np.arange(weights.shape[1]) - (positions[0] - recent), 0)
    free_from = np.minimum(free_from, len(weights))
    free_from[: protocol.sinks] = len(weights)
    always = sum(
        float(row[: protocol.sinks].sum() + row[position - recent + 1 : position + 1].sum())
        for row, position in zip(weights, positions, strict=True)
    )
    problem = PlacementProblem(
        weights,
        free_from,
        capacity - protocol.sinks - (recent - 1),
        np.floor(max_churn * capacity).astype(np.int64),
    )
    found = best_placement(problem)
    return (always + found.placed) / len(weights), (always + found.upper) / len(weights)


def _first_prices(problem: PlacementProblem) -> tuple[Float64, Float64]:
    """The value of the last token that fits, mean over the steps, and a multiple of it."""
    marginal = [
        np.partition(row, -count)[-count] if (count := int(capacity)) <= len(row) else 0.0
        for row, capacity in zip(problem.value, problem.capacity, strict=True)
    ]
    price = max(float(np.mean(marginal)), 1e-7)
    return np.full(len(marginal), price), np.full(len(marginal), CHANGE_PRICE * price)


def _backward(
    problem: PlacementProblem, slot: Float64, change: Float64
) -> tuple[float, NDArray[np.bool_], NDArray[np.bool_], Float32]:
    """What every token makes of the prices.

    Returns the sum of all tokens' profits; bool [steps, tokens], whether a token that was hot in the step
    before stays so, and whether one that was cold becomes hot; float32 [steps, tokens], what it is worth
    to be hot in the step rather than cold, the slot paid for.
    """
    steps, tokens = problem.value.shape
    stays, enters = np.empty((2, steps, tokens), np.bool_)
    worth = np.empty((steps, tokens), np.float32)
    freed = _freed(problem)
    # Profit of the steps to come of a token that is hot, and of one that is cold.
    hot, cold = np.zeros((2, tokens), np.float32)
    profit = 0.0
    for step in range(steps - 1, -1, -1):
        hot_now = problem.value[step] - np.float32(slot[step])
        hot_now += hot
        np.subtract(hot_now, cold, out=worth[step])
        np.greater(worth[step], 0, out=stays[step])
        bought = hot_now - np.float32(change[step])
        np.greater(bought, cold, out=enters[step])
        hot = np.maximum(hot_now, cold)
        cold = np.maximum(bought, cold)
        # Here the life of a freed token begins, hot; in step 0 hot or cold costs nothing alike.
        profit += float(hot[freed[step]].sum(dtype=np.float64))
        if step:
            unborn = problem.free_from >= step
            hot[unborn] = 0
            cold[unborn] = 0
    return profit, stays, enters, worth


def _dual(problem: PlacementProblem, slot: Float64, change: Float64) -> tuple[float, Int64, Int64]:
    """The dual's value, an upper bound, and how many slots and changes the tokens buy in each step."""
    profit, stays, enters, _ = _backward(problem, slot, change)
    steps = len(slot)
    freed = _freed(problem)
    used, changed = np.zeros((2, steps), np.int64)
    hot = np.zeros(problem.value.shape[1], np.bool_)
    for step in range(steps):
        hot[freed[step]] = True
        now = np.where(hot, stays[step], enters[step])
        now[problem.free_from > step] = False
        used[step], changed[step] = now.sum(), (now & ~hot).sum()
        hot = now
    income = float(problem.capacity @ slot + problem.max_changes[1:] @ change[1:])
    return income + profit, used, changed


def _placement(problem: PlacementProblem, slot: Float64, change: Float64) -> Mask:
    """A placement within the limits: of what is hot and the few worthiest others, the worthiest."""
    _, _, _, worth = _backward(problem, slot, change)
    freed = _freed(problem)
    placed = np.zeros(problem.value.shape, np.bool_)
    hot = np.zeros(problem.value.shape[1], np.bool_)
    for step, row in enumerate(worth):
        hot[freed[step]] = True
        others = np.flatnonzero(~hot & (problem.free_from <= step))
        few = others[top_lowest_index(row[others], min(int(problem.max_changes[step]), len(others)))]
        candidates = np.concatenate([np.flatnonzero(hot), few])
        count = min(int(problem.capacity[step]), len(candidates))
        placed[step, candidates[highest(row[candidates], count)]] = True
        hot = placed[step].copy()
    return placed


def _freed(problem: PlacementProblem) -> list[Int64]:
    """The tokens whose first step to be placed each step is."""
    order = np.argsort(problem.free_from, kind="stable")
    cuts = np.searchsorted(problem.free_from[order], np.arange(1, len(problem.value) + 1))
    return np.split(order, cuts)[:-1]
