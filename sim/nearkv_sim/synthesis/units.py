"""What can be synthesised of a design: the scorer, with what stands beside it, or with buses around it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from nearkv_hdl.attention.fold_config import fold_lanes
from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.spec.design import DesignConfig, Family
from nearkv_hdl.spec.score_statistics import STATISTICS_DEGREE
from nearkv_hdl.top import kernel, native_pcie
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
    KERNEL = "kernel"  # scorer and selections behind AXI
    NATIVE_PCIE = "native_pcie"  # kernel, queues and requester behind the integrated block

    @property
    def module(self) -> str:
        """Name of the top module."""
        return _MODULES[self]

    @property
    def budgets(self) -> Mapping[str, Resources]:
        """Accepted figures by design; those with a bus are counted on demand and have none."""
        return {Unit.SCORER: BUDGETS, Unit.KEY_SCORER: KEY_SCORER_BUDGETS}.get(self, {})

    def verilog(self, design: DesignConfig) -> str:
        """Verilog for synthesis, with vendor blocks where the design's variant has any.

        Raises ValueError for a design whose bus the unit does not have.
        """
        if self is Unit.SCORER:
            return scorer_verilog(design, primitives=True)
        return to_verilog(_COMPONENTS[self](design, primitives=True), name=self.module)

    def dsps_beside_scorer(self, design: DesignConfig) -> int | None:
        """DSP blocks of folding and statistics (one per degree of the polynomial and head).

        None where nothing says how many: Yosys makes them of the address arithmetic of a kernel as it likes.
        """
        if self is Unit.SCORER:
            return 0
        if self is not Unit.KEY_SCORER:
            return None
        folding = _DSPS_PER_FOLD_LANE[design.device.family] * fold_lanes(design)
        return folding + STATISTICS_DEGREE * design.query_group


_MODULES = {
    Unit.SCORER: SCORER_MODULE,
    Unit.KEY_SCORER: KEY_SCORER_MODULE,
    Unit.KERNEL: kernel.MODULE_NAME,
    Unit.NATIVE_PCIE: native_pcie.MODULE_NAME,
}
_COMPONENTS = {
    Unit.KEY_SCORER: KeyScorer,
    Unit.KERNEL: kernel.Kernel,
    Unit.NATIVE_PCIE: native_pcie.NativePcie,
}
