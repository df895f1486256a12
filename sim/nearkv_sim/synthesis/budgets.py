"""What each named design may cost: the last accepted synthesis, with a tolerance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from nearkv_sim.synthesis.resources import Resources

# DSP and RAM blocks follow from the design exactly; logic moves a little with every change of Yosys or RTL.
LOGIC_TOLERANCE = 0.10
_LOGIC = ("luts", "flip_flops", "carries")

# Measured with `nearkv synth` and Yosys 0.70. A change beyond the tolerance, up or down, is to be explained
# in the commit that changes the entry.
BUDGETS: dict[str, Resources] = {
    "tiny": Resources(luts=1_656, flip_flops=1_459, dsps=16, brams=6, carries=259),
    "ulx3s_85f": Resources(luts=3_259, flip_flops=3_773, dsps=64, brams=30, carries=682),
    "ecp5_5g_85f": Resources(luts=5_521, flip_flops=5_638, dsps=128, brams=30, carries=1_296),
    "smartssd_ku15p": Resources(luts=15_310, flip_flops=31_301, dsps=256, brams=15, carries=3_090),
    "native_pcie": Resources(luts=15_310, flip_flops=31_301, dsps=256, brams=15, carries=3_090),
    "alveo_u50": Resources(luts=17_190, flip_flops=42_617, dsps=256, brams=15, carries=4_818),
}

# The scorer with query folding and score statistics beside it (`nearkv synth --unit key_scorer`).
KEY_SCORER_BUDGETS: dict[str, Resources] = {
    "tiny": Resources(luts=6_864, flip_flops=6_163, dsps=25, brams=8, carries=817),
    "smartssd_ku15p": Resources(luts=25_685, flip_flops=44_654, dsps=288, brams=18.5, carries=3_671),
}


def budget_problems(
    design_name: str, used: Resources, budgets: Mapping[str, Resources] = BUDGETS
) -> list[str]:
    """Resources outside the design's budget, one line each; a design without an entry has no budget."""
    budget = budgets.get(design_name)
    if budget is None:
        return []
    problems = []
    for field in fields(budget):
        expected, actual = getattr(budget, field.name), getattr(used, field.name)
        tolerance = LOGIC_TOLERANCE if field.name in _LOGIC else 0.0
        if abs(actual - expected) > tolerance * expected:
            problems.append(f"{actual:g} {field.name}; budget: {expected:g} ± {100 * tolerance:g} %")
    return problems
