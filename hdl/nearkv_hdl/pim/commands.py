"""What a processing unit is told, and the rows it is streamed."""

from __future__ import annotations

from amaranth.lib import data

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import (
    EXPONENT_FIELD,
    FP16_BITS,
    LOGIT_SCALE_FRACTION_BITS,
    MAXIMUM,
    VALUE_EXPONENT,
    Operation,
)
from nearkv_hdl.spec.pim_design import PimDesign


def command_layout(design: PimDesign) -> data.StructLayout:
    """Payload of the command stream. Fields a command does not name are ignored."""
    return data.StructLayout(
        {
            "operation": range(len(Operation)),
            "slot": 1,
            "first": 1,
            "row_format": 1,  # RowFormat: SCORE, ACCUMULATE
            "tokens": range(design.block_tokens + 1),
            "scale": LOGIT_SCALE_FRACTION_BITS,  # WRITE_QUERY: logit_scale(head_dim)
            "merge": 1,  # Merge: ACCUMULATE (exponential: under the slot's own maximum), READ_*
            "maximum": shape_of(MAXIMUM),  # ACCUMULATE in an exact merge
            "value_exponent": shape_of(VALUE_EXPONENT),  # ACCUMULATE
        }
    )


def row_layout(design: PimDesign) -> data.StructLayout:
    """Payload of the row stream.

    An FP16 beat holds `lanes` numbers; an INT8 beat 2·lanes codes, worked off in two cycles, and their
    group's exponent field. `last` marks a command's final beat.
    """
    return data.StructLayout({"data": FP16_BITS * design.lanes, "exponent": EXPONENT_FIELD.width, "last": 1})
