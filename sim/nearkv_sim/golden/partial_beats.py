"""Partial results as the beats of a stream, and back: fields for `pack_words`, from `unpack_words`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.attention import LOGIT, VALUE_EXPONENT, Merge
from nearkv_sim.golden.attention import Int64, Partial

_EXPONENT_MASK = (1 << VALUE_EXPONENT.width) - 1
_MAXIMUM_MASK = (1 << LOGIT.width) - 1
_TOTAL_LANE, _MAXIMUM_LANE = 0, 1


def _header(total: Int64, maximum: Int64, exponent: int, lanes: int) -> Int64:
    rows = np.zeros((len(total), lanes), np.int64)
    rows[:, _TOTAL_LANE] = total
    rows[:, _MAXIMUM_LANE] = (maximum & _MAXIMUM_MASK) | (exponent & _EXPONENT_MASK) << LOGIT.width
    return rows


def partial_fields(partial: Partial, exponent: int, merge: Merge, lanes: int) -> dict[str, NDArray[Any]]:
    """Beats of the partials of all heads, one after the other: data [beats, lanes], merge, last."""
    heads, head_dim = partial.sums.shape
    beats = np.concatenate(
        [
            _header(partial.total, partial.maximum, exponent, lanes)[:, None],
            partial.sums.reshape(heads, head_dim // lanes, lanes),
        ],
        axis=1,
    )
    last = np.zeros(beats.shape[:2], np.uint8)
    last[:, -1] = 1
    data = beats.reshape(-1, lanes)
    return {"data": data, "merge": np.full(len(data), int(merge), np.uint8), "last": last.reshape(-1)}


def maximum_fields(maximum: Int64, exponent: int, lanes: int) -> dict[str, NDArray[Any]]:
    """Beats of maxima alone, one per head; `maximum` is a logit (Q15.16)."""
    data = _header(np.zeros(len(maximum), np.int64), maximum, exponent, lanes)
    ones = np.ones(len(data), np.uint8)
    return {"data": data, "merge": np.zeros_like(ones), "last": ones}


def concatenate_fields(parts: Sequence[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Beats of several transfers, in order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def partial_of(data: NDArray[Any], head_dim: int) -> tuple[Partial, Int64]:
    """Partials and their E_V from beats of full partials: data [heads · (1 + beats), lanes]."""
    lanes = data.shape[1]
    frames = data.astype(np.int64).reshape(-1, 1 + head_dim // lanes, lanes)
    word = frames[:, 0, _MAXIMUM_LANE]
    maximum = (word & _MAXIMUM_MASK) - ((word & 1 << LOGIT.width - 1) << 1)
    exponent = word >> LOGIT.width & _EXPONENT_MASK
    exponent -= (exponent & 1 << VALUE_EXPONENT.width - 1) << 1
    return Partial(maximum, frames[:, 0, _TOTAL_LANE], frames[:, 1:].reshape(len(frames), head_dim)), exponent
