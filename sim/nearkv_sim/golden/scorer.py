"""Golden model of the streaming QKᵀ scorer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, SCORE, SHIFT

# Integers up to this are exact in float32, so a sum bounded by it is exact in any order of additions.
FLOAT32_EXACT = 1 << 24


class ScorerModel:
    """Scores of whole arrays of key blocks, bit-exact with `nearkv_hdl.attention.scorer.Scorer`.

    Args:
        design: query format and head dimensions.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design

    def exact_dtype(self, head_dim: int) -> type[np.float32] | type[np.float64]:
        """Float type in which BLAS sums head_dim products of a code and a query code exactly."""
        largest_sum = -CODE.min * self.design.query_code.max * head_dim
        return np.float32 if largest_sum <= FLOAT32_EXACT else np.float64

    def score(
        self,
        codes: NDArray[np.int8] | NDArray[np.float32] | NDArray[np.float64],
        query_codes: NDArray[np.integer],
        shift: NDArray[np.integer],
        bias: NDArray[np.integer],
    ) -> NDArray[np.int32]:
        """Score key blocks: bias + (Σ q'·code << shift).

        Args:
            codes: [blocks, block_tokens, head_dim], 8-bit codes or, in INT4, 16 · high nibble; int8, or
                already in `exact_dtype`, which saves the conversion when blocks are scored again.
            query_codes: integers [blocks, heads, head_dim] within the design's query format.
            shift: integers [blocks, heads] in 0…7.
            bias: integers [blocks, heads].

        Returns:
            int32 [blocks · block_tokens, heads].

        Raises:
            ValueError: shapes that do not match, an operand outside its format, or a score that does not
                fit 32 bits.

        """
        blocks, tokens, head_dim = codes.shape
        heads = query_codes.shape[1]
        self.design.check_head_dim(head_dim)
        if query_codes.shape != (blocks, heads, head_dim) or {shift.shape, bias.shape} != {(blocks, heads)}:
            raise ValueError(
                f"codes {codes.shape}, query_codes {query_codes.shape}, shift {shift.shape} and bias"
                f" {bias.shape} do not match; allowed: [blocks, tokens, head_dim], [blocks, heads,"
                " head_dim], [blocks, heads] twice"
            )
        limit = self.design.query_code.max
        if blocks and np.abs(query_codes).max() > limit:
            raise ValueError(f"query code {np.abs(query_codes).max()} in magnitude; allowed: at most {limit}")
        if blocks and not (shift.min() >= 0 and shift.max() <= SHIFT.max):
            raise ValueError(f"shift is {shift.min()} to {shift.max()}; allowed: 0 to {SHIFT.max}")
        dtype = self.exact_dtype(head_dim)
        dots = np.matmul(codes.astype(dtype, copy=False), query_codes.astype(dtype).transpose(0, 2, 1))
        # float64 holds a shifted dot product plus bias exactly: far below 2^53.
        scores = np.multiply(dots, np.exp2(shift.astype(np.float64))[:, None, :], dtype=np.float64)
        scores += bias[:, None, :]
        if blocks and not (scores.min() >= SCORE.min and scores.max() <= SCORE.max):
            raise ValueError(f"score is {scores.min()} to {scores.max()}; allowed: signed 32 bit")
        result: NDArray[np.int32] = scores.astype(np.int32).reshape(blocks * tokens, heads)
        return result
