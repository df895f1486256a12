"""Lossy option for reduction traffic: the sums of a partial result as 8-bit codes under a shift per block.

Per 32 channels of o: the smallest shift e under which the rounded codes lie within ±127, code = rhu(o, e),
back code << e. m, l and E_V travel exactly. With codes the exact merge is no longer independent of how tokens
are split: what is rounded depends on the shard.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.attention import SUM
from nearkv_hdl.spec.formats import CODE
from nearkv_sim.golden.attention import Partial
from nearkv_sim.golden.stored_rows import groups_of

_HEADER_BYTES = 2 * SUM.width // 8  # lanes of l and of m with E_V
_SHIFT_BYTES = 1


@dataclass(frozen=True)
class QuantisedPartial:
    """A partial result on the wire.

    Attributes:
        exact: m and l as they are; its sums are not transmitted.
        codes: int8 [heads, head_dim].
        shifts: uint8 [heads, groups of 32 channels].

    Raises ValueError for shapes that disagree, or a head_dim without such groups.

    """

    exact: Partial
    codes: NDArray[np.int8]
    shifts: NDArray[np.uint8]

    def __post_init__(self) -> None:
        """Check the shapes."""
        heads, head_dim = self.exact.sums.shape
        groups = groups_of(head_dim)
        if self.codes.shape != (heads, head_dim) or self.shifts.shape != (heads, groups):
            raise ValueError(
                f"codes are {list(self.codes.shape)}, shifts {list(self.shifts.shape)}; allowed:"
                f" [{heads}, {head_dim}] and [{heads}, {groups}]"
            )


def quantise_partial(partial: Partial) -> QuantisedPartial:
    """Round the sums of every head; ValueError for a head_dim without groups of 32 channels."""
    heads, head_dim = partial.sums.shape
    groups = groups_of(head_dim)
    grouped = partial.sums.reshape(heads, groups, head_dim // groups)
    largest = np.abs(grouped).max(axis=2)
    length = np.frexp(largest.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(length - (CODE.width - 1), 0)
    shift += rhu(largest, shift) > CODE.max
    codes = rhu(grouped, shift[:, :, None]).reshape(heads, head_dim)
    return QuantisedPartial(
        replace(partial, sums=np.zeros_like(partial.sums)), codes.astype(np.int8), shift.astype(np.uint8)
    )


def expand_partial(quantised: QuantisedPartial) -> Partial:
    """The partial that the receiver goes on with."""
    head_dim = quantised.codes.shape[1]
    shifts = np.repeat(quantised.shifts, head_dim // groups_of(head_dim), axis=1).astype(np.int64)
    return replace(quantised.exact, sums=quantised.codes.astype(np.int64) << shifts)


def partial_bytes(head_dim: int, *, quantised: bool) -> int:
    """Bytes of one head's partial result on the wire, header included; ValueError as `quantise_partial`."""
    if not quantised:
        return _HEADER_BYTES + head_dim * SUM.width // 8
    return _HEADER_BYTES + head_dim + groups_of(head_dim) * _SHIFT_BYTES
