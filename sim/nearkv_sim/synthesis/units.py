"""What can be synthesised of a design: the scorer, or the scorer with all that stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from nearkv_hdl.attention.fold_config import fold_lanes
from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.spec.design import DesignConfig, Family
from nearkv_hdl.spec.score_statistics import STATISTICS_DEGREE
from nearkv_hdl.verilog import to_verilog
from nearkv_sim.scorer_verilog import SCORER_MODULE, scorer_verilog
from nearkv_sim.synthesis.budgets import BUDGETS, KEY_SCORER_BUDGETS
from nearkv_sim.synthesis.resources import Resources

KEY_SCORER_MODULE = "nearkv_key_scorer"
# Blocks of a fold lane: two 16 × 12 bit products, one of 27 × 9, one of query code × 10. An 18-bit block
# takes half of the wide one.
_DSPS_PER_FOLD_LANE = {Family.ULTRASCALE_PLUS: 4, Family.ECP5: 5}


class Unit(Enum):
    """A unit of a design."""

    SCORER = "scorer"  # queries come folded
    KEY_SCORER = "key_scorer"  # scorer, folding and score statistics

    @property
    def module(self) -> str:
        """Name of the top module."""
        return SCORER_MODULE if self is Unit.SCORER else KEY_SCORER_MODULE

    @property
    def budgets(self) -> Mapping[str, Resources]:
        """Accepted figures by design."""
        return BUDGETS if self is Unit.SCORER else KEY_SCORER_BUDGETS

    def verilog(self, design: DesignConfig) -> str:
        """Verilog for synthesis, with vendor blocks where the design's variant has any."""
        if self is Unit.SCORER:
            return scorer_verilog(design, primitives=True)
        return to_verilog(KeyScorer(design, primitives=True), name=KEY_SCORER_MODULE)

    def dsps_beside_scorer(self, design: DesignConfig) -> int:
        """DSP blocks of folding and statistics (one per degree of the polynomial and head)."""
        if self is Unit.SCORER:
            return 0
        folding = _DSPS_PER_FOLD_LANE[design.device.family] * fold_lanes(design)
        return folding + STATISTICS_DEGREE * design.query_group
