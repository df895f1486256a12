"""Which tokens a step attends: for which unit one set is chosen, and how heads are merged for it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nearkv.experiments.attention import Float64, score_weights, select
from nearkv.experiments.scoring import StepScores

ChosenMask = NDArray[np.bool_]


class SelectionUnit(Enum):
    """Who shares one set of selected tokens."""

    QUERY_HEAD = "query_head"
    KV_HEAD = "kv_head"  # the query heads that share keys
    LAYER = "layer"


class HeadMerge(Enum):
    """How the scores of heads become one."""

    NORMALISED = "normalised"  # the softmax of each head: scores of different heads do not compare
    RAW = "raw"  # the articles' behaviour: base-2 logits as they come


def merits(scored: StepScores, merge: HeadMerge) -> Float64:
    """What heads are merged by, float64 [tokens, heads]: softmax weights, or logits in units of 1."""
    if merge is HeadMerge.NORMALISED:
        return score_weights(scored.scores, scored.fraction_bits)
    return np.ldexp(scored.scores.astype(np.float64), -scored.fraction_bits.astype(np.int32))


def choose(merit: Sequence[Float64], count: int, unit: SelectionUnit) -> list[ChosenMask]:
    """The `count` tokens of largest merit, summed over the unit's heads; ties to the lower token.

    Args:
        merit: per KV head of one layer, float64 [tokens, query heads of its group]. With a unit below the
            layer each is judged by itself.
        count: tokens per unit.
        unit: who shares a set.

    Returns:
        Per KV head bool [tokens, query heads]: whether that head attends the token.

    """
    if unit is SelectionUnit.LAYER:
        shared = _mask(select(np.concatenate(merit, axis=1), count), len(merit[0]))
        return [np.repeat(shared[:, None], one.shape[1], axis=1) for one in merit]
    if unit is SelectionUnit.KV_HEAD:
        return [
            np.repeat(_mask(select(one, count), len(one))[:, None], one.shape[1], axis=1) for one in merit
        ]
    return [
        np.stack([_mask(select(column[:, None], count), len(one)) for column in one.T], axis=1)
        for one in merit
    ]


def _mask(tokens: NDArray[np.int64], count: int) -> ChosenMask:
    chosen = np.zeros(count, np.bool_)
    chosen[tokens] = True
    return chosen
