"""Golden model of query folding in hardware."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.key_block import BlockHeaders
from nearkv.codec.query import FIXED_POINT_BITS, FoldedQuery, Int64, PreparedQuery, fold_query
from nearkv_hdl.attention.fold_config import UNIT
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import QUERY_MANTISSA
from nearkv_hdl.spec.layout import KeyFormat


def fold_units(query: PreparedQuery, score_fraction_bits: Int64) -> Int64:
    """What hardware needs to know of exponents: 24 + fraction bits of the query − L, int64 [heads]."""
    return np.asarray(FIXED_POINT_BITS + query.fraction_bits - score_fraction_bits, np.int64)


class FoldModel:
    """Folds whole arrays of headers, bit-exact with `nearkv_hdl.attention.fold_unit.FoldUnit`.

    The host's codec is the specification, so this is the codec behind the unit's operands.

    Args:
        design: query format, query group and head dimensions.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design

    def fold(
        self,
        mantissa: NDArray[np.integer],
        unit: NDArray[np.integer],
        headers: BlockHeaders,
        key_format: KeyFormat | tuple[KeyFormat, ...],
    ) -> FoldedQuery:
        """Fold one query set into every header.

        Args:
            mantissa: integers [query_group, head_dim] within QUERY_MANTISSA.
            unit: integers [query_group] within UNIT, see `fold_units`.
            headers: of the job's blocks.
            key_format: one for all blocks, or one per block.

        Returns codes, shift and bias; `score_fraction_bits` is L for a query with 0 fraction bits.

        Raises:
            ValueError: shapes that do not match, an operand outside its format, a unit for which a code or
                score need not fit.

        """
        self.design.check_head_dim(headers.layout.head_dim)
        group = self.design.query_group
        if mantissa.shape != (group, headers.layout.head_dim) or unit.shape != (group,):
            raise ValueError(
                f"mantissa {mantissa.shape} and unit {unit.shape} do not match; allowed:"
                f" ({group}, {headers.layout.head_dim}) and ({group},)"
            )
        for name, values, number in (("mantissa", mantissa, QUERY_MANTISSA), ("unit", unit, UNIT)):
            if values.min() < number.min or values.max() > number.max:
                raise ValueError(
                    f"{name} is {values.min()} to {values.max()}; allowed: {number.min} to {number.max}"
                )
        query = PreparedQuery(mantissa.astype(np.int64), np.zeros(group, np.int64))
        fraction_bits = FIXED_POINT_BITS - unit.astype(np.int64)
        return fold_query(query, headers, key_format, self.design.query_code, fraction_bits)
