"""Synthesis of whole designs, as records and as a table."""

from __future__ import annotations

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


def table_rows(reports: list[DesignReport]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the table of designs: used, and per cent of the device."""
    header = ["design", "unit", "part", *_COLUMNS.values(), "result"]
    rows = []
    for report in reports:
        available = device_resources(report.design.device)
        cells = [report.design.name, report.unit.value, report.design.device.part]
        for field in fields(Resources):
            used, total = getattr(report.used, field.name), getattr(available, field.name)
            cells.append(f"{used:g} ({100 * used / total:.1f} %)" if total else "–")
        has_budget = report.design.name in report.unit.budgets
        fine = "within budget" if has_budget else "no budget"
        cells.append(f"{len(report.problems)} problems" if report.problems else fine)
        rows.append(cells)
    return header, rows


def as_table(reports: list[DesignReport]) -> str:
    """The table for a terminal, with problems and caveats below."""
    header, rows = table_rows(reports)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        names = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[3:-1], widths[3:-1], strict=True)]
        lines.append("  ".join([*names, *numbers, row[-1]]))
    problems = [f"{report.design.name}: {problem}" for report in reports for problem in report.problems]
    return "\n".join([*lines, "", *problems, *CAVEATS, ""])
