"""The one rounding of all integer arithmetic on arrays: half up, as the hardware does it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


def rhu(x: Int64, k: Int64 | int, *, zero_above: int = 63) -> Int64:
    """Round half up of x / 2^k, elementwise: (x + 2^(k−1)) >> k for k > 0, x at k = 0, x << −k below.

    Written as ((x >> (k−1)) + 1) >> 1, which cannot overflow. A k above `zero_above` (at most 63) gives 0.
    """
    shift = np.asarray(k, np.int64)
    rounded = ((x >> np.clip(shift - 1, 0, 63)) + 1) >> 1
    exact = x << np.maximum(-shift, 0)
    result: Int64 = np.where(shift <= 0, exact, np.where(shift > zero_above, 0, rounded))
    return result
