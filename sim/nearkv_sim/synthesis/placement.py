"""Place and route of designs with several seeds, as records and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.few_pins import FewPins
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.top.kernel_core import KernelCore
from nearkv_hdl.verilog import to_verilog
from nearkv_sim.synthesis.nextpnr import GOAL_MHZ, PlacementTimeout, Routed, Router
from nearkv_sim.synthesis.units import Unit

PLACED_UNITS = {Unit.SCORER: Scorer, Unit.KERNEL: KernelCore}
PLACED_MODULE = "nearkv_placed"
PLACEMENT_CAVEATS = (
    "A unit stands between a shift register and an XOR instead of pins: every path of it begins and ends in a"
    " register, and those of the two are not the slowest; their cells are counted.",
    "Fmax is nextpnr's static timing at the slow corner of the speed grade, not a measurement on a board.",
    "MULT18X18D and PDPW16KD are instantiated with their registers; simulations use behavioural twins.",
)
# nextpnr's names, and what they are in the data sheet.
CELL_NAMES = {
    "TRELLIS_COMB": "LUT4",
    "TRELLIS_FF": "FF",
    "MULT18X18D": "MULT18X18D",
    "DP16KD": "DP16KD",  # what nextpnr makes of PDPW16KD, too
}


@dataclass(frozen=True)
class Placement:
    """A design placed and routed with several seeds.

    Attributes:
        design: what was placed.
        unit: which unit of it; "uart_scorer" on a board.
        router: with the versions of the tools and the digest of the source.
        runs: one per seed that finished, in the order of the seeds.
        unfinished_seeds: those that took longer than they may.

    """

    design: DesignConfig
    unit: str
    router: Router
    runs: tuple[Routed, ...]
    unfinished_seeds: tuple[int, ...] = ()

    @property
    def best(self) -> Routed:
        """The run with the highest clock."""
        return max(self.runs, key=lambda run: run.fmax_mhz)


def placed_verilog(design: DesignConfig, unit: Unit) -> str:
    """A unit of PLACED_UNITS behind few pins, with vendor blocks instantiated."""
    return to_verilog(FewPins(PLACED_UNITS[unit](design, primitives=True)), name=PLACED_MODULE)


def place_design(
    design: DesignConfig,
    unit: Unit,
    seeds: Iterable[int],
    progress: Callable[[int], None] = lambda _: None,
    limit_s: float | None = None,
) -> Placement:
    """Place and route a unit of a design; arguments and errors are those of `route_seeds`."""
    router = Router(placed_verilog(design, unit), PLACED_MODULE, design.device, limit_s=limit_s)
    return route_seeds(design, unit.value, router, seeds, progress)


def route_seeds(
    design: DesignConfig, unit: str, router: Router, seeds: Iterable[int], progress: Callable[[int], None]
) -> Placement:
    """Route with each seed in turn; `progress` is called with it before.

    Raises:
        PlacementTimeout: no seed finished in time. Otherwise as `Router.route`.

    """
    runs, unfinished = [], []
    for seed in seeds:
        progress(seed)
        try:
            runs.append(router.route(seed))
        except PlacementTimeout as error:
            unfinished.append(seed)
            last = error
    if not runs:
        raise PlacementTimeout(f"none of {len(unfinished)} seeds: {last}")
    return Placement(design, unit, router, tuple(runs), tuple(unfinished))


def as_record(placement: Placement) -> dict[str, Any]:
    """A placement as JSON values; where it was cached is left out."""
    design, best = placement.design, placement.best
    return {
        "design": design.name,
        "unit": placement.unit,
        "part": design.device.part,
        "lanes": design.lanes,
        "query_group": design.query_group,
        "variant": design.mac_variant.value,
        "yosys": placement.router.yosys,
        "nextpnr": placement.router.nextpnr,
        "verilog_sha256": placement.router.verilog_sha256,
        "goal_mhz": GOAL_MHZ[design.device.part],
        "fmax_mhz": {str(run.seed): run.fmax_mhz for run in placement.runs},
        "unfinished_seeds": list(placement.unfinished_seeds),
        "best_seed": best.seed,
        "used": best.used,
        "available": best.available,
    }


def table_rows(records: Iterable[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of placements."""
    header = ["design", "unit", "part", "lanes × heads", "Fmax, MHz", "lowest to highest", "seeds"]
    header += list(CELL_NAMES.values())
    rows = []
    for record in records:
        clocks = record["fmax_mhz"]
        cells = [
            record["design"],
            record["unit"],
            record["part"],
            f"{record['lanes']} × {record['query_group']}",
            f"{max(clocks.values()):.1f}",
            f"{min(clocks.values()):.1f} to {max(clocks.values()):.1f}",
            ", ".join(
                [
                    *(f"{seed}: {clock:.1f}" for seed, clock in clocks.items()),
                    *(f"{seed}: not in time" for seed in record.get("unfinished_seeds", ())),
                ]
            ),
        ]
        for name in CELL_NAMES:
            used, available = record["used"].get(name, 0), record["available"].get(name, 0)
            cells.append(f"{used} ({100 * used / available:.1f} %)" if available else "0")
        rows.append(cells)
    return header, rows
