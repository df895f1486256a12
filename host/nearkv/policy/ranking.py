"""Picks the largest of many values in linear time, with a stated order among equals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TokenIndex = NDArray[np.int64]


def highest(priority: NDArray[np.generic], count: int) -> TokenIndex:
    """Indices of the `count` highest priorities, ascending; ties to the higher index. O(n)."""
    reverse = top_lowest_index(priority[::-1], count)
    return len(priority) - 1 - reverse[::-1]


def top_lowest_index(values: NDArray[np.generic], count: int) -> TokenIndex:
    """Indices of the `count` largest values, ascending; ties to the lower index. O(n).

    ValueError unless 0 ≤ count ≤ len(values).
    """
    if not 0 <= count <= len(values):
        raise ValueError(f"count is {count}; allowed: 0 to {len(values)}")
    if count == 0:
        return np.empty(0, np.int64)
    # Untouched tokens share the least value; numpy's partition is ten times slower with them than without.
    threshold = values.min()
    above = values[values > threshold]
    if len(above) >= count:
        threshold = np.partition(above, len(above) - count)[len(above) - count]
    chosen = values > threshold
    ties = np.flatnonzero(values == threshold)
    chosen[ties[: count - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)
