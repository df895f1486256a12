"""Exact merges around the top-k unit: jobs larger than its capacity, and selections of several units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv_sim.golden.topk import Integers

Select = Callable[[Integers, int], Integers]


def select_in_parts(scores: NDArray[Any], k: int, capacity: int, select: Select) -> Integers:
    """Select from more scores than one job may hold: positions in ascending order, exactly `k_highest`.

    Every job holds the survivors of the job before, then as many new scores as fit, so positions ascend and
    ties still go to the lower one. A score that is dropped had k better ones, so nothing is lost.

    Args:
        scores: integers [N], in order of tokens.
        k: below the capacity.
        capacity: scores of a job.
        select: (scores of a job, k) gives ascending positions in that job: a unit or its model.

    Raises ValueError if k is not below the capacity: then a job could not take anything new.

    """
    if not 0 <= k < capacity:
        raise ValueError(f"k is {k} with capacity {capacity}; allowed: 0 to {capacity - 1} in parts")
    values = np.asarray(scores, np.int64)
    kept = np.arange(min(capacity, len(values)), dtype=np.int64)
    taken = len(kept)
    while True:
        kept = kept[select(values[kept], k)]
        if taken == len(values):
            return kept
        new = np.arange(taken, min(taken + capacity - len(kept), len(values)), dtype=np.int64)
        taken += len(new)
        kept = np.concatenate([kept, new])


def merge_selections(
    parts: Sequence[tuple[NDArray[Any], NDArray[Any]]], k: int, capacity: int, select: Select
) -> tuple[Integers, Integers]:
    """Merge the selections of several units into that of all their tokens together.

    Exact if each part is the k highest of its unit's tokens (all of them if it has fewer): whatever a unit
    dropped had k better ones there.

    Args:
        parts: (tokens, scores) of each unit, in any order; a token belongs to one unit.
        k, capacity, select: as for `select_in_parts`.

    Returns tokens and scores in ascending order of tokens. Raises ValueError for a token that comes twice,
    and as `select_in_parts` does.

    """
    tokens = np.concatenate([np.zeros(0, np.int64), *(np.asarray(t, np.int64) for t, _ in parts)])
    scores = np.concatenate([np.zeros(0, np.int64), *(np.asarray(s, np.int64) for _, s in parts)])
    order = np.argsort(tokens, kind="stable")
    tokens, scores = tokens[order], scores[order]
    twice = np.flatnonzero(np.diff(tokens) == 0)
    if len(twice):
        raise ValueError(f"token {tokens[twice[0]]} is in more than one selection; allowed: in one")
    chosen = select_in_parts(scores, k, capacity, select)
    return tokens[chosen], scores[chosen]
