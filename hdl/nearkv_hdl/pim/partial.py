"""Partial results on their way from the processing units to the final division."""

from __future__ import annotations

from amaranth.lib import data

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import LOGIT, SUM, VALUE_EXPONENT

TOTAL_LANE = 0  # lane of the header that carries l
MAXIMUM_LANE = 1  # lane of the header that carries m and E_V

MAXIMUM_WORD = data.StructLayout(
    {
        "maximum": shape_of(LOGIT),
        "value_exponent": shape_of(VALUE_EXPONENT),
        "unused": SUM.width - LOGIT.width - VALUE_EXPONENT.width,
    }
)


def partial_layout(partial_lanes: int) -> data.StructLayout:
    """Payload of a stream of partials.

    A partial is a header (l in lane 0, m and E_V in lane 1) and then the sums o, `partial_lanes` a beat. A
    header with `last` is a shard's maximum alone, as phase 1 of an exact merge reports it.
    """
    return data.StructLayout(
        {
            "data": data.ArrayLayout(shape_of(SUM), partial_lanes),
            "merge": 1,  # Merge
            "last": 1,
        }
    )
