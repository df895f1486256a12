"""Golden model of the FP16 row scorer: the logits of a processing unit, in the order of the score stream."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.golden.attention import logits

Float16 = NDArray[np.float16]


class RowScorer:
    """Twin of `nearkv_hdl.attention.row_scorer.RowScorer`.

    Args:
        design: query group and head dimensions.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design

    def score(self, query: Float16, keys: Float16) -> tuple[NDArray[np.int32], int]:
        """Score key rows.

        Args:
            query: float16 [query_group, head_dim].
            keys: float16 [tokens, head_dim].

        Returns:
            Q15.16 scores, int32 [tokens, query_group], and the number of saturated ones.

        Raises:
            ValueError: shapes that do not match, an Inf or NaN, a sum beyond 48 bits.

        """
        group, head_dim = self.design.query_group, query.shape[-1]
        self.design.check_head_dim(head_dim)
        if query.shape != (group, head_dim) or keys.shape[1:] != (head_dim,):
            raise ValueError(
                f"query is {list(query.shape)} and keys are {list(keys.shape)}; allowed: [{group}, head_dim]"
                " and [tokens, head_dim]"
            )
        scores, saturated = logits(query, keys)
        return np.ascontiguousarray(scores.T), saturated
