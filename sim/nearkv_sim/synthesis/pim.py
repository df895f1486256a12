"""Synthesis of PIM designs: every component once, and the RTL and a device computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from amaranth.lib import wiring

from nearkv_hdl.pim.final_division import FinalDivision
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.spec.design import Family
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.verilog import to_verilog
from nearkv_sim.synthesis.budgets import budget_problems
from nearkv_sim.synthesis.pim_budgets import PIM_BUDGETS
from nearkv_sim.synthesis.resources import Resources, count_resources
from nearkv_sim.synthesis.yosys import Netlist, synthesise

# The memory die's own process has no open library: cells of an FPGA stand for the amount of logic.
PIM_FAMILY = Family.ULTRASCALE_PLUS
PART_MODULE = "nearkv_pim"
PIM_CAVEATS = (
    "PIM designs: UltraScale+ cells of logic that is meant for a memory die or its controller. They compare"
    " designs with each other, not with areas in mm².",
    "RTL (what `nearkv rtl` writes) and device are computed: components times their counts, not synthesised.",
)


@dataclass(frozen=True)
class Part:
    """A component that is synthesised alone.

    Attributes:
        name: what it is.
        build: makes an instance; Amaranth complains of instances that are never elaborated.
        instantiated: how many `PimDevice` has.
        in_device: how many a whole device has.

    """

    name: str
    build: Callable[[], wiring.Component]
    instantiated: int
    in_device: int


@dataclass(frozen=True)
class PartReport:
    """Synthesis of one component.

    Attributes:
        part: what was synthesised.
        netlist: the cells.
        used: their sum.
        problems: what is outside the budget, one line each.

    """

    part: Part
    netlist: Netlist
    used: Resources
    problems: tuple[str, ...]


def pim_parts(design: PimDesign) -> tuple[Part, ...]:
    """Processing unit, reduction unit of every fan-in, final division."""
    mergers: dict[int, tuple[int, int]] = {}
    for fan_in, own, all_units in zip(
        design.fan_ins, design.rtl_reduction_units, design.reduction_units, strict=True
    ):
        instantiated, in_device = mergers.get(fan_in, (0, 0))
        mergers[fan_in] = instantiated + own, in_device + all_units
    return (
        Part("processing unit", partial(ProcessingUnit, design), design.rtl_units, design.units),
        *(
            Part(
                f"reduction unit of {fan_in}",
                partial(ReductionUnit, fan_in, design.partial_lanes, design.degree),
                *counts,
            )
            for fan_in, counts in mergers.items()
        ),
        Part("final division", partial(FinalDivision, design.partial_lanes, design.dividers), 1, 1),
    )


def synthesise_parts(design: PimDesign) -> Iterator[PartReport]:
    """Synthesise the components of a design, one after the other; raises as `synthesise`."""
    for part in pim_parts(design):
        netlist = synthesise(to_verilog(part.build(), name=PART_MODULE), PART_MODULE, PIM_FAMILY)
        used = count_resources(netlist.cells, PIM_FAMILY)
        problems = budget_problems(part.name, used, PIM_BUDGETS[design.name])
        yield PartReport(part, netlist, used, tuple(problems))


def computed_totals(design: PimDesign, used: Mapping[str, Resources]) -> tuple[Resources, Resources]:
    """Resources of the RTL and of a whole device, from those of the components by name."""
    instantiated, device = Resources(), Resources()
    for part in pim_parts(design):
        instantiated += used[part.name].times(part.instantiated)
        device += used[part.name].times(part.in_device)
    return instantiated, device
