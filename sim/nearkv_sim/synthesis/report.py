"""Synthesis of whole designs, as records and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.synthesis.budgets import budget_problems
from nearkv_sim.synthesis.resources import Resources, count_resources, device_resources, mapping_problems
from nearkv_sim.synthesis.units import Unit
from nearkv_sim.synthesis.yosys import Netlist, synthesise

CAVEATS = (
    "Out of context: the unit alone, without pads, clock buffer, bus shell or placement.",
    "UltraScale+ (xcup): Yosys packs no registers into DSP48E2 and merges no LUT pairs, so that flip-flops"
    " and LUTs are upper bounds; carries are counted as CARRY4, half of a CARRY8.",
    "There is no open timing analysis for UltraScale+: these are counts and say nothing about the clock.",
)


@dataclass(frozen=True)
class DesignReport:
    """Synthesis of one design.

    Attributes:
        design: what was synthesised.
        unit: which unit of it.
        netlist: the cells.
        used: their sum.
        problems: what is wrong with it, one line each; empty if nothing is.

    """

    design: DesignConfig
    unit: Unit
    netlist: Netlist
    used: Resources
    problems: tuple[str, ...]


def synthesise_design(design: DesignConfig, unit: Unit = Unit.SCORER) -> DesignReport:
    """Synthesise a design's unit for its device; raises as `synthesise` and `count_resources`."""
    netlist = synthesise(unit.verilog(design), unit.module, design.device.family)
    used = count_resources(netlist.cells, design.device.family)
    problems = mapping_problems(design, used, unit.dsps_beside_scorer(design))
    problems += budget_problems(design.name, used, unit.budgets)
    return DesignReport(design, unit, netlist, used, tuple(problems))


def as_record(report: DesignReport) -> dict[str, Any]:
    """A report as JSON values; where it was cached is left out, so that equal inputs give equal records."""
    available = device_resources(report.design.device)
    return {
        "design": report.design.name,
        "unit": report.unit.value,
        "part": report.design.device.part,
        "yosys": report.netlist.yosys,
        "passes": report.netlist.passes,
        "verilog_sha256": report.netlist.verilog_sha256,
        "cells": report.netlist.cells,
        "resources": {
            name: {"used": used, "available": total, "percent": _percent(used, total)}
            for (name, used), total in zip(
                asdict(report.used).items(), asdict(available).values(), strict=True
            )
        },
        "has_budget": report.design.name in report.unit.budgets,
        "problems": list(report.problems),
    }


def _percent(used: float, available: float) -> float | None:
    return round(100 * used / available, 2) if available else None


_COLUMNS = {
    "luts": "LUT",
    "flip_flops": "FF",
    "dsps": "DSP",
    "brams": "BRAM",
    "urams": "URAM",
    "carries": "carry",
}


_HEADER = ("design", "unit", "part", *_COLUMNS.values(), "result")
# Fixed, so that a line can be shown before the next design is synthesised.
_NAME_WIDTHS, _NUMBER_WIDTH = (14, 11, 20), 15


def _row(report: DesignReport) -> list[str]:
    """Cells under the header: used, and per cent of the device."""
    available = device_resources(report.design.device)
    cells = [report.design.name, report.unit.value, report.design.device.part]
    for field in fields(Resources):
        used, total = getattr(report.used, field.name), getattr(available, field.name)
        cells.append(f"{used:g} ({100 * used / total:.1f} %)" if total else "–")
    fine = "within budget" if report.design.name in report.unit.budgets else "no budget"
    return [*cells, f"{len(report.problems)} problems" if report.problems else fine]


def text_line(cells: Sequence[str], name_widths: Sequence[int], number_width: int) -> str:
    """Cells as a line: names to the left, numbers to the right, the last cell as it is."""
    count = len(name_widths)
    names = [cell.ljust(width) for cell, width in zip(cells[:count], name_widths, strict=True)]
    numbers = [cell.rjust(number_width) for cell in cells[count:-1]]
    return "  ".join([*names, *numbers, cells[-1]])


def table_lines(reports: Iterable[DesignReport]) -> Iterator[str]:
    """Lines of the table for a terminal, each as soon as its report is there, then the problems."""
    yield text_line(_HEADER, _NAME_WIDTHS, _NUMBER_WIDTH)
    problems = []
    for report in reports:
        yield text_line(_row(report), _NAME_WIDTHS, _NUMBER_WIDTH)
        problems += [f"{report.design.name}: {problem}" for problem in report.problems]
    yield from ("", *problems)
