"""What stored key and value rows stand for: every format as exact numbers `sig · 2^ex` in float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.attention import (
    FP16_BIAS,
    FP16_EXPONENT_NAN,
    INT8_SIGNIFICAND_SHIFT,
    MAX_VALUE_EXPONENT,
    MIN_VALUE_EXPONENT,
    groups_of,
)
from nearkv_hdl.spec.formats import CODE

Float32 = NDArray[np.float32]
_LARGEST_CODE = CODE.max  # −128 is decoded, but never written: codes are symmetric


@dataclass(frozen=True)
class Int8Rows:
    """Rows as codes under one exponent field per group of 32 channels (fewer if the row is shorter).

    Args:
        codes: int8 [tokens, head_dim].
        exponents: uint8 [tokens, groups], 1…30; code c stands for 16c · 2^(E − 25).

    Raises ValueError for shapes that do not match or an exponent outside its range.

    """

    codes: NDArray[np.int8]
    exponents: NDArray[np.uint8]

    def __post_init__(self) -> None:
        """Check the arguments."""
        tokens, head_dim = self.codes.shape
        if self.exponents.shape != (tokens, groups_of(head_dim)):
            raise ValueError(
                f"exponents are {list(self.exponents.shape)} for codes {list(self.codes.shape)};"
                f" allowed: [{tokens}, {groups_of(head_dim)}]"
            )
        if self.exponents.size and not (
            self.exponents.min() >= 1 and self.exponents.max() < FP16_EXPONENT_NAN
        ):
            raise ValueError(
                f"exponents are {self.exponents.min()} to {self.exponents.max()}; allowed: 1 to"
                f" {FP16_EXPONENT_NAN - 1}"
            )

    def channel_exponents(self) -> NDArray[np.uint8]:
        """Exponent field of every code."""
        head_dim = self.codes.shape[1]
        return np.repeat(self.exponents, head_dim // groups_of(head_dim), axis=1)


Rows = NDArray[np.float16] | Int8Rows


def stored_values(rows: Rows) -> Float32:
    """Values of stored rows, exact in float32. ValueError for Inf and NaN."""
    if isinstance(rows, Int8Rows):
        exponent = rows.channel_exponents().astype(np.int32) - FP16_BIAS + INT8_SIGNIFICAND_SHIFT
        return np.ldexp(rows.codes.astype(np.float32), exponent)
    if rows.dtype != np.float16:
        raise ValueError(f"rows are {rows.dtype}; allowed: float16 or Int8Rows")
    values = rows.astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("rows hold Inf or NaN; allowed: finite numbers")
    return values


def quantise_int8(rows: NDArray[np.float16]) -> Int8Rows:
    """Round rows to INT8: per group the smallest exponent under which the largest code is at most 127.

    Codes are rounded half to even; a group of zeros gets the smallest exponent; above 65,280 the largest
    exponent's code saturates.
    """
    values = stored_values(rows).astype(np.float64)
    tokens, head_dim = values.shape
    groups = groups_of(head_dim)
    grouped = values.reshape(tokens, groups, head_dim // groups)
    largest = np.abs(grouped).max(axis=2)
    # 127.5 would round to 128, so the step 2^e is the smallest with largest < 127.5 · 2^e.
    power = np.frexp(largest / (_LARGEST_CODE + 0.5))[1]
    fields = np.where(largest == 0, 1, power - INT8_SIGNIFICAND_SHIFT + FP16_BIAS)
    fields = np.clip(fields, 1, FP16_EXPONENT_NAN - 1)
    steps = np.ldexp(1.0, fields - FP16_BIAS + INT8_SIGNIFICAND_SHIFT)
    codes = np.rint(grouped / steps[:, :, None]).clip(-_LARGEST_CODE, _LARGEST_CODE).reshape(tokens, head_dim)
    return Int8Rows(codes.astype(np.int8), fields.astype(np.uint8))


def value_exponent(rows: Rows) -> int:
    """E_V of value rows: the smallest integer ≥ −13 whose power of two no value reaches.

    For INT8 rows it also covers the full scale 128 · 2^e of every group, so that a shift is never negative.
    """
    if isinstance(rows, Int8Rows):
        top = int(rows.exponents.max(initial=1)) - FP16_BIAS + INT8_SIGNIFICAND_SHIFT + CODE.width - 1
        return max(top, MIN_VALUE_EXPONENT)
    largest = float(np.abs(stored_values(rows)).max(initial=0.0))
    # frexp: largest = mantissa · 2^power with mantissa < 1, so largest < 2^power.
    power = int(np.frexp(largest)[1]) if largest else MIN_VALUE_EXPONENT
    return min(max(power, MIN_VALUE_EXPONENT), MAX_VALUE_EXPONENT)
