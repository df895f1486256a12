"""Sizes and formats of query folding in hardware, shared by RTL and golden model (no Amaranth here)."""

from __future__ import annotations

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS, BIAS_GUARD_BITS, SHIFT, Format, Overflow, Rounding
from nearkv_hdl.spec.layout import FP16_BYTES

QUERY_SETS = 2  # one in use, one loading
HEADER_BANKS = 2  # likewise
# Heads between the start of their first and of their second pass: one is in its first pass, the others cover
# that pass's latency.
HEAD_SLOTS = 4
# Blocks' worth of codes in the output queue: one waits whole for a bank of the scorer, one is being folded.
QUEUED_BLOCKS = 2

# Right shift that turns a product of mantissa and scale (in 2^-24) into a code at e = 0: 24 + fraction bits
# of the query − L, in 0…90 for every finite FP16 query and L from −24 to 24.
UNIT = Format(8, signed=True, overflow=Overflow.ERROR)
FOLD_PRODUCT = Format(27, signed=True)  # |mantissa · significand| ≤ 2^15 · 2047 < 2^26
HALF_STEPS = Format(9, signed=True)  # 2·mean_code + 1
TWICE_MEAN = Format(10, signed=True)  # 2·mean_code, or 2·mean_code − 15 in INT4

# The bias. Terms are rounded at BIAS_GUARD_BITS below a score's last bit; bounded scores bound each of a
# term's two parts by 2^(31 + BIAS_GUARD_BITS).
TERM_INTEGER_BITS = BIAS.width + BIAS_GUARD_BITS
# Both parts are cut off (floored) below 2^-36 and then added. The sum rounds as the uncut one: if only one
# was cut, all else in the sum is a multiple of 2^-36; if both were, they are below 2^-11 and 2^-3 (27 and 36
# bits that end below 2^-36), so that either sum rounds to 0.
TERM_FRACTION_BITS = 36
TERM_PART_BITS = TERM_INTEGER_BITS + TERM_FRACTION_BITS  # signed
TERM = Format(TERM_INTEGER_BITS + 1, signed=True, rounding=Rounding.HALF_UP)


def fold_lanes(design: DesignConfig) -> int:
    """Channels that either pass folds per cycle: the power of two with which folding keeps up with the lanes.

    A block has query_group·head_dim products and lasts block_tokens·head_dim/lanes cycles. A bus beat of the
    header must hold as many FP16 numbers, which bounds it where blocks are shorter than the layout's 128
    tokens: folding may then fall behind.
    """
    needed = -(-design.query_group * design.lanes // design.block_tokens)
    return min(1 << (needed - 1).bit_length(), design.lanes, design.bus_bytes // FP16_BYTES)


def fold_steps(design: DesignConfig, head_dim: int) -> int:
    """Cycles that a pass spends on one query head of a block."""
    design.check_head_dim(head_dim)
    return head_dim // fold_lanes(design)


def header_beats(design: DesignConfig, head_dim: int) -> int:
    """Bus beats of a block's channel tables; the last is filled up where they are no multiple of the bus."""
    return -(-design.layout(head_dim).channel_table_bytes // design.bus_bytes)


def half_units(design: DesignConfig) -> Format:
    """A product in half units of the code at e = 0, floored: with e ≤ 7 the code follows from it exactly.

    rhu(p, unit + e) = (h + 2^e) >> (e + 1) with h = p >> (unit − 1), since floors nest.
    """
    return Format(design.query_code.width + 1 + SHIFT.max, signed=True, rounding=Rounding.FLOOR)


def anchor(design: DesignConfig) -> Format:
    """Sum of a head's terms, rounded to score units: q·anchor, of which only the bias must fit 32 bits."""
    summed = TERM.sum_of(design.head_dims[-1])
    return Format(summed.width - BIAS_GUARD_BITS + 1, signed=True, rounding=Rounding.HALF_UP)


def mean_dot(design: DesignConfig) -> Format:
    """Sum of code · twice the mean code over a head's channels."""
    return design.query_code.product(TWICE_MEAN).sum_of(design.head_dims[-1])
