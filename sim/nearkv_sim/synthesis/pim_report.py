"""Synthesis of PIM designs, as records and as a table: measured components, computed totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_sim.synthesis.pim import PIM_FAMILY, Part, PartReport, computed_totals, pim_parts
from nearkv_sim.synthesis.report import text_line
from nearkv_sim.synthesis.resources import Resources

_NAMES = ("design", "component")
PIM_COLUMNS = ("in RTL", "in device", "LUT", "FF", "DSP", "BRAM", "URAM", "carry")
_NAME_WIDTHS, _NUMBER_WIDTH = (14, 20), 10


def pim_table_lines(design: PimDesign, reports: Iterable[PartReport]) -> Iterator[str]:
    """Lines of a design's table, each as soon as its report is there, then the sums and the problems."""
    yield text_line((*_NAMES, *PIM_COLUMNS, "result"), _NAME_WIDTHS, _NUMBER_WIDTH)
    used: dict[str, Resources] = {}
    problems = []
    for report in reports:
        used[report.part.name] = report.used
        result = f"{len(report.problems)} problems" if report.problems else "within budget"
        yield text_line(
            [design.name, *_part_row(report.part, report.used), result], _NAME_WIDTHS, _NUMBER_WIDTH
        )
        problems += [f"{design.name}, {report.part.name}: {problem}" for problem in report.problems]
    for row in _sum_rows(design, used):
        yield text_line([design.name, *row, "computed"], _NAME_WIDTHS, _NUMBER_WIDTH)
    yield from ("", *problems)


def component_rows(design: PimDesign, used: Mapping[str, Resources]) -> list[list[str]]:
    """Component and cells under PIM_COLUMNS, from the components' resources by name; the sums come last."""
    return [*(_part_row(part, used[part.name]) for part in pim_parts(design)), *_sum_rows(design, used)]


def _part_row(part: Part, used: Resources) -> list[str]:
    return [part.name, str(part.instantiated), str(part.in_device), *_cells(used)]


def _sum_rows(design: PimDesign, used: Mapping[str, Resources]) -> list[list[str]]:
    instantiated, device = computed_totals(design, used)
    return [
        ["RTL, computed", "1", "–", *_cells(instantiated)],
        ["device, computed", "–", "1", *_cells(device)],
    ]


def _cells(used: Resources) -> list[str]:
    return [f"{getattr(used, field.name):.12g}" for field in fields(used)]


def pim_record(design: PimDesign, reports: Sequence[PartReport]) -> dict[str, Any]:
    """A design's components and sums as JSON values."""
    used = {report.part.name: report.used for report in reports}
    instantiated, device = computed_totals(design, used)
    return {
        "design": design.name,
        "family": PIM_FAMILY.value,
        "components": [
            {
                "component": report.part.name,
                "in_rtl": report.part.instantiated,
                "in_device": report.part.in_device,
                "yosys": report.netlist.yosys,
                "passes": report.netlist.passes,
                "verilog_sha256": report.netlist.verilog_sha256,
                "cells": report.netlist.cells,
                "resources": asdict(report.used),
                "problems": list(report.problems),
            }
            for report in reports
        ],
        "computed": {"rtl": asdict(instantiated), "device": asdict(device)},
    }
