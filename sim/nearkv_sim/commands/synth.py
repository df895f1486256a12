"""`nearkv synth`: LUT, FF, DSP and BRAM of the named designs on their devices."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from nearkv.command import Command
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, find_design
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.commands.output import check_new_folder, write_new_folder
from nearkv_sim.synthesis.pim import PIM_CAVEATS, PartReport, synthesise_parts
from nearkv_sim.synthesis.pim_report import pim_record, pim_table_lines
from nearkv_sim.synthesis.report import CAVEATS, DesignReport, as_record, synthesise_design, table_lines
from nearkv_sim.synthesis.units import Unit
from nearkv_sim.synthesis.yosys import SynthesisError, require_yosys

_LONG_UNITS = (Unit.KERNEL.value, Unit.NATIVE_PCIE.value)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--design", nargs="+", action="extend", metavar="NAME", help="some of the designs; default: all"
    )
    parser.add_argument(
        "--unit",
        choices=[unit.value for unit in Unit],
        help=(
            "of scorer designs: scorer (default); key_scorer: with query folding and score statistics;"
            " kernel: scorer and selections behind AXI; native_pcie: the kernel behind PCIe. The last two"
            " take a CPU minute for the smallest design, and far more than ten for a card's"
        ),
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of standard output")
    parser.add_argument("--no-progress", action="store_true", help="no progress line on stderr")


def _run(args: argparse.Namespace) -> int:
    scorers, devices = _designs(args)
    check_new_folder(args.output)
    require_yosys()
    show = sys.stderr.isatty() and not args.no_progress
    reports: list[DesignReport] = []
    parts: dict[str, list[PartReport]] = {design.name: [] for design in devices}

    def scorer_reports() -> Iterator[DesignReport]:
        for design in scorers:
            _progress(show, design.name)
            try:
                reports.append(synthesise_design(design, Unit(args.unit or Unit.SCORER.value)))
            except (SynthesisError, ValueError) as error:
                raise ValueError(f"design {design.name}: {error}") from error
            yield reports[-1]

    def part_reports(design: PimDesign) -> Iterator[PartReport]:
        _progress(show, design.name)
        try:
            for report in synthesise_parts(design):
                parts[design.name].append(report)
                yield report
        except SynthesisError as error:
            raise ValueError(f"design {design.name}: {error}") from error

    tables = [table_lines(scorer_reports())] if scorers else []
    tables += [pim_table_lines(design, part_reports(design)) for design in devices]
    caveats = [*CAVEATS, *(PIM_CAVEATS if devices else ())]
    lines = []
    for line in chain(*tables, caveats):
        lines.append(line)
        if args.format == "table":
            print(line, flush=True)
    record = {
        "designs": [as_record(report) for report in reports],
        "pim_designs": [pim_record(design, parts[design.name]) for design in devices],
        "caveats": caveats,
    }
    text = json.dumps(record, indent=2) + "\n"
    write_new_folder(args.output, {"synth.json": text, "synth.txt": "\n".join(lines) + "\n"})
    if args.format == "json":
        print(text, end="")
    problems = [report.problems for report in reports]
    problems += [part.problems for part in chain.from_iterable(parts.values())]
    return 1 if any(problems) else 0


def _designs(args: argparse.Namespace) -> tuple[list[DesignConfig], list[PimDesign]]:
    """The scorer and the PIM designs asked for, each once."""
    if args.design is None:
        if args.unit in _LONG_UNITS:
            raise ValueError(
                f"unit is {args.unit} without a design; allowed: with --design, since one takes minutes"
            )
        return list(DESIGNS.values()), [] if args.unit else list(PIM_DESIGNS.values())
    chosen = [find_design(name) for name in dict.fromkeys(args.design)]
    devices = [design for design in chosen if isinstance(design, PimDesign)]
    if devices and args.unit:
        raise ValueError(
            f"unit is {args.unit} with PIM design {devices[0].name}; allowed: with scorer designs only"
        )
    return [design for design in chosen if isinstance(design, DesignConfig)], devices


def _progress(show: bool, name: str) -> None:
    if show:
        print(f"synth: {name}", file=sys.stderr, flush=True)


COMMAND = Command("synthesise designs with Yosys: resources against the device", _configure, _run)
