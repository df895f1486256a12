"""The Verilog of a design's scorer, as users get it and as it is synthesised."""

from __future__ import annotations

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.verilog import to_verilog

SCORER_MODULE = "nearkv_scorer"


def scorer_verilog(design: DesignConfig, *, primitives: bool = False) -> str:
    """Self-contained Verilog with the top module SCORER_MODULE and flat port names.

    With `primitives` vendor blocks are instantiated where the design's variant has any: for synthesis alone.
    """
    return to_verilog(Scorer(design, primitives=primitives), name=SCORER_MODULE)
