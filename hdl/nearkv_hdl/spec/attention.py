"""Formats and constants of attention in a processing unit and of both reductions.

A stored number is `sig · 2^ex`: an FP16 number with exponent field E has a signed 11-bit significand and
ex = max(E, 1) − 25, so subnormals need no case of their own. An INT8 row carries one exponent field per
group of channels with the same bias, and its code c stands for 16c · 2^(E − 25).
"""

from __future__ import annotations

import math
from enum import IntEnum

from nearkv_hdl.spec.formats import Format, Overflow, Rounding

# FP16 (IEEE 754 binary16).
FP16_BITS = 16
FP16_FRACTION_BITS = 10
FP16_EXPONENT_BITS = 5
FP16_EXPONENT_NAN = (1 << FP16_EXPONENT_BITS) - 1  # Inf and NaN
FP16_BIAS = 25  # value = sig · 2^(max(E, 1) − 25) with the significand as an integer
FP16_MIN_EXPONENT = 1 - FP16_BIAS
FP16_MAX_EXPONENT = FP16_EXPONENT_NAN - 1 - FP16_BIAS

SIGNIFICAND = Format(12, signed=True)  # ±2047 of FP16; −2048 only as 16 · (−128)
EXPONENT_FIELD = Format(FP16_EXPONENT_BITS, signed=False, overflow=Overflow.ERROR)

# INT8 rows: signed codes, one exponent field for a group of consecutive channels (the block of OCP MX).
INT8_GROUP_CHANNELS = 32
INT8_SIGNIFICAND_SHIFT = 4

# Phase 1, scores. One product is below 65504² < 2^32 in magnitude.
PRODUCT = Format(49, signed=True, fraction_bits=16, rounding=Rounding.HALF_UP)
DOT = Format(48, signed=True, fraction_bits=16, overflow=Overflow.ERROR)
LOGIT = Format(32, signed=True, fraction_bits=16, rounding=Rounding.HALF_UP, overflow=Overflow.SATURATE)
LOGIT_SCALE_FRACTION_BITS = 24
MAXIMUM = Format(16, signed=True)  # integer part of a logit
EMPTY_MAXIMUM = MAXIMUM.min  # what a shard without tokens reports

# Phase 2, sums. W of the design: a weight of 1 counts 2^W in l, so l of 2^20 tokens fits 47 bits.
WEIGHT = Format(16, signed=False, fraction_bits=15)  # m = 2^f
SUM_FRACTION_BITS = 26
SUM_TOKENS = 1 << 20  # for which 48 bits are proven to suffice
SUM = Format(48, signed=True, fraction_bits=SUM_FRACTION_BITS)
VALUE_EXPONENT = Format(6, signed=True, overflow=Overflow.ERROR)  # E_V
MIN_VALUE_EXPONENT = -13  # below it a subnormal's shift would be negative
MAX_VALUE_EXPONENT = 16  # every finite FP16 number is below 2^16
ZERO_SHIFT = 40  # a shift above this gives 0

# Final division: quotient bits below the first, that is 11 of the significand, one to round, one to spare.
QUOTIENT_FRACTION_BITS = FP16_FRACTION_BITS + 3

DEGREES = (2, 3, 4, 5, 6)  # of the polynomial
DEFAULT_DEGREE = 3


class Merge(IntEnum):
    """How partial results of shards are combined."""

    EXACT = 0  # sums of integers under one global maximum: any partition, any order, same bits
    EXPONENTIAL = 1  # partials under their own maxima, rescaled by 2^(m_i − m'), as in the papers


class RowFormat(IntEnum):
    """What a row of keys or values is stored as."""

    FP16 = 0
    INT8 = 1  # codes under an exponent per group of channels


class Operation(IntEnum):
    """Commands of a processing unit, of the shape write-query, MAC over a block, read-result."""

    WRITE_QUERY = 0  # takes one FP16 row: the query, with `scale`
    SCORE = 1  # MAC over `tokens` key rows: logits into `slot`, `first` empties it before
    READ_MAXIMUM = 2  # sends the slot's integer maximum as a lone header
    ACCUMULATE = (
        3  # MAC over `tokens` value rows with the slot's next scores; `first` empties the sums before
    )
    READ_RESULT = 4  # sends m, l and o


def logit_scale(head_dim: int) -> int:
    """round(2^24 · log2(e)/√head_dim): what turns a dot product into a base-2 logit."""
    if head_dim < 1:
        raise ValueError(f"head_dim is {head_dim}; allowed: from 1")
    return round((1 << LOGIT_SCALE_FRACTION_BITS) / (math.log(2) * math.sqrt(head_dim)))


def groups_of(head_dim: int) -> int:
    """Groups of channels with an exponent (INT8 row) or a shift (packed partial) of their own.

    ValueError unless head_dim is 1 to 32 or a multiple of 32.
    """
    if head_dim < 1 or (head_dim > INT8_GROUP_CHANNELS and head_dim % INT8_GROUP_CHANNELS):
        raise ValueError(f"head_dim is {head_dim}; allowed: 1 to {INT8_GROUP_CHANNELS} or a multiple of it")
    return max(1, head_dim // INT8_GROUP_CHANNELS)


def check_value_exponent(value: int) -> int:
    """Return E_V; ValueError unless it lies in −13…16."""
    if not MIN_VALUE_EXPONENT <= value <= MAX_VALUE_EXPONENT:
        raise ValueError(
            f"value_exponent is {value}; allowed: {MIN_VALUE_EXPONENT} to {MAX_VALUE_EXPONENT},"
            " the smallest with |v| < 2^value_exponent for every value ever written"
        )
    return value
