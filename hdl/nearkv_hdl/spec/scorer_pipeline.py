"""Register ranks of the scorer: components assert that they have them, the cycle formula adds them up."""

from __future__ import annotations

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.multiplier import MacVariant, packing

# A beat is taken; it is written to its memory; its row is counted; the row is granted to the lanes.
ROW_RANKS = 3
# The last query beat of a bank has been taken; it is written; the issue logic has seen it.
QUERY_RANKS = 2
# The lanes read a row of the low queue for the last time; the drop is registered; then its place is free.
DROP_RANKS = 1
# A lane beat is issued; row memory; its output register; nibble multiplexer.
PLANE_RANKS = 3
# A query row is addressed; memory.
QUERY_READ_RANKS = 1
# A token's dot product is there; shifted; bias added.
SCALE_RANKS = 2
# A score is written to the empty output queue; memory; output register.
OUTPUT_QUEUE_RANKS = 2
# A score is taken; that is registered; its credit is counted; the issue logic sees it. One credit more is
# never used.
CREDIT_RANKS = 4
# MULT18X18D: input, pipeline and output registers. An inferred multiplier has a register behind it.
MULT18X18D_RANKS = 3
INFERRED_MULTIPLIER_RANKS = 1
# The two query codes of packed heads are joined while the key codes are still on their way.
PACK_RANKS = 1
# Packed sums are split into their two fields.
SPLIT_RANKS = 1
# Two keys are paired: their codes are written; read; halves selected and packed.
PAIR_RANKS = 3


def tree_ranks(terms: int) -> int:
    """Levels of an adder tree over a power of two of terms."""
    return terms.bit_length() - 1


def dot_terms(design: DesignConfig) -> int:
    """Products of one key that a dot product unit adds per cycle."""
    return design.lanes // 2 if design.mac_variant is MacVariant.PACKED_KEYS else design.lanes


def dot_ranks(design: DesignConfig) -> int:
    """Cycles from operands to accumulated sum."""
    multiply, split = INFERRED_MULTIPLIER_RANKS, 0
    if design.mac_variant is MacVariant.MULT18X18D:
        multiply = MULT18X18D_RANKS
    elif design.mac_variant is not MacVariant.PLAIN:
        split = SPLIT_RANKS
    return multiply + tree_ranks(dot_terms(design)) + split + 1


def packed_terms(design: DesignConfig) -> int:
    """Products that are summed before the fields are split: what the field holds, or all there are."""
    assert design.mac_variant in (MacVariant.PACKED_HEADS, MacVariant.PACKED_KEYS)
    return min(packing(design.mac_variant, design.query_code).terms, dot_terms(design))


def pair_ranks(design: DesignConfig) -> int:
    """Cycles from the codes of a pair's last lane beat to its last half beat, packed.

    The 2·C half beats of a pair of C-beat tokens end at one distance for every head dimension, the one that
    the longest tokens need, so that pairs of different length never meet.
    """
    if design.mac_variant is not MacVariant.PACKED_KEYS:
        return 0
    return PAIR_RANKS + 2 * design.lane_beats_per_token(design.head_dims[-1]) - 1


def serial_ranks(design: DesignConfig) -> int:
    """Cycles from a pair's dot products to those of its second key, alone, in a register."""
    return 2 if design.mac_variant is MacVariant.PACKED_KEYS else 0


def mac_ranks(design: DesignConfig) -> int:
    """Cycles from the codes of a token's last lane beat to its dot product (of a pair's second token)."""
    return pair_ranks(design) + dot_ranks(design) + serial_ranks(design)


def pipeline_ranks(design: DesignConfig) -> int:
    """Cycles from a token's last lane beat to the write of its score into the output queue."""
    return PLANE_RANKS + mac_ranks(design) + SCALE_RANKS
