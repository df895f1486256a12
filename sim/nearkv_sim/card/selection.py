"""What the kernel's top-k units make of a job's scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.device.top_scores import Selection
from nearkv_hdl.spec.layout import PAIRS_PER_LINE
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.golden.topk import TopKModel
from nearkv_sim.golden.topk_timing import TopKTiming

Int64 = NDArray[np.int64]


def select(config: TopKConfig, tokens: Int64, scores: NDArray[np.int32], k: int) -> tuple[Selection, int]:
    """The k highest scores of each head, and the cycles from the last score to the last pair.

    Heads are searched side by side and emitted one after the other, each filled up to whole lines: the walk
    of one whose turn has not come waits at its first item.

    Args:
        config: of the units.
        tokens: int64 [N], ascending.
        scores: int32 [N, heads].
        k: from 1.

    """
    model, timing = TopKModel(config), TopKTiming(config)
    results = [model.select(tokens, of_head, k) for of_head in scores.T]
    cycles = 0
    for result in results:
        first_row = int(result.positions[0]) // config.lanes
        in_turn = cycles + timing.emit_cycles(result, first_row)
        cycles = max(timing.cycles(result), in_turn) + -result.count % PAIRS_PER_LINE
    selection = Selection(
        np.stack([result.tokens for result in results]),
        np.stack([result.scores for result in results]).astype(np.int32),
    )
    return selection, cycles
