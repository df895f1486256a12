"""Golden model of a processing unit: the same commands on whole blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.attention import EMPTY_MAXIMUM, LOGIT, Merge, check_value_exponent
from nearkv_hdl.spec.pim_design import SLOTS, PimDesign
from nearkv_sim.golden.attention import (
    Int32,
    Int64,
    Partial,
    logits,
    merge_exact,
    shard_maximum,
    weighted_sums,
)
from nearkv_sim.golden.reduction import rescale_running
from nearkv_sim.golden.stored_rows import Int8Rows, Rows


class ProcessingUnitModel:
    """Attention of one query over a shard, bit-exact with `nearkv_hdl.pim.processing_unit.ProcessingUnit`.

    Args:
        design: head dimension, block size, degree.

    Attributes:
        saturated: logits saturated so far.

    """

    def __init__(self, design: PimDesign) -> None:
        self.design = design
        self.saturated = 0
        self._query = np.zeros((1, design.head_dim), np.float16)
        self._scores: list[Int32] = [np.zeros((1, 0), np.int32) for _ in range(SLOTS)]
        self._read_from = [0] * SLOTS
        self._partial: Partial | None = None
        self._maximum = np.array([EMPTY_MAXIMUM], np.int64)
        self._exponent = 0

    def write_query(self, query: NDArray[np.float16]) -> None:
        """Keep a query, float16 [head_dim]."""
        if query.shape != (self.design.head_dim,):
            raise ValueError(f"query is {list(query.shape)}; allowed: [{self.design.head_dim}]")
        self._query = query[None]

    def score(self, slot: int, keys: Rows, *, first: bool) -> None:
        """Append the logits of key rows to a slot, emptied before if `first`."""
        if first:
            self._scores[slot] = np.zeros((1, 0), np.int32)
            self._read_from[slot] = 0
        new, saturated = logits(self._query, keys)
        self.saturated += saturated
        scores = np.concatenate([self._scores[slot], new], axis=1)
        if scores.shape[1] > self.design.block_tokens:
            raise ValueError(
                f"slot {slot} has {scores.shape[1]} tokens; allowed: up to {self.design.block_tokens}"
            )
        self._scores[slot] = scores

    def maximum(self, slot: int) -> int:
        """Integer maximum of a slot, −2^15 if empty."""
        return int(shard_maximum(self._scores[slot])[0])

    def accumulate(
        self, slot: int, values: Rows, *, first: bool, exponent: int, merge: Merge, maximum: int | None = None
    ) -> None:
        """Add value rows with the slot's next logits, under `maximum` (exact) or the largest yet."""
        check_value_exponent(exponent)
        tokens = len(values.codes) if isinstance(values, Int8Rows) else len(values)
        start = self._read_from[slot]
        scores = self._scores[slot][:, start : start + tokens]
        if scores.shape[1] != tokens:
            raise ValueError(f"slot {slot} has {scores.shape[1]} logits left; allowed: {tokens} value rows")
        self._read_from[slot] += tokens
        if first:
            self._partial = None
        if merge is Merge.EXACT:
            if maximum is None:
                raise ValueError("maximum is None; allowed: the global maximum in an exact merge")
            top = np.array([maximum], np.int64)
        else:
            top = shard_maximum(self._scores[slot])
            if self._partial is not None:
                top = np.maximum(top, self._maximum)
        self._maximum, self._exponent = top, exponent
        if not tokens:
            if self._partial is not None:
                self._partial = rescale_running(self._partial, top)
            return
        new = weighted_sums(scores, values, top, exponent, self.design.degree)
        self._partial = (
            new if self._partial is None else merge_exact([rescale_running(self._partial, top), new])
        )

    def result(self) -> tuple[Partial, int]:
        """m, l, o and E_V."""
        if self._partial is None:
            zeros: Int64 = np.zeros((1, self.design.head_dim), np.int64)
            return Partial(self._maximum << LOGIT.fraction_bits, zeros[:, 0], zeros), self._exponent
        return self._partial, self._exponent


def row_fields(design: PimDesign, rows: Rows) -> dict[str, NDArray[Any]]:
    """Bus beats of rows for `pack_words(row_layout(design), …)`: data as bytes, exponent, last."""
    if isinstance(rows, Int8Rows):
        data = rows.codes.view(np.uint8).reshape(-1, 2 * design.lanes)
        exponents = rows.channel_exponents().reshape(-1, 2 * design.lanes)[:, 0]
    else:
        data = np.ascontiguousarray(rows, "<f2").view(np.uint8).reshape(-1, 2 * design.lanes)
        exponents = np.zeros(len(data), np.uint8)
    last = np.zeros(len(data), np.uint8)
    last[-1:] = 1
    return {"data": data, "exponent": exponents, "last": last}
