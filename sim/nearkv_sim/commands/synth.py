"""`nearkv synth`: LUT, FF, DSP and BRAM of the named designs on their devices."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from nearkv.command import Command
from nearkv_hdl.spec.designs import DESIGNS, get_design
from nearkv_sim.commands.output import check_new_folder, write_new_folder
from nearkv_sim.synthesis.report import CAVEATS, DesignReport, as_record, as_table, synthesise_design
from nearkv_sim.synthesis.units import Unit
from nearkv_sim.synthesis.yosys import SynthesisError, require_yosys


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--design", nargs="+", default=list(DESIGNS), metavar="NAME", help="some of the designs; default: all"
    )
    parser.add_argument(
        "--unit",
        choices=[unit.value for unit in Unit],
        default=Unit.SCORER.value,
        help="the scorer (default), or key_scorer: with query folding and score statistics",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of standard output")
    parser.add_argument("--no-progress", action="store_true", help="no progress line on stderr")


def _run(args: argparse.Namespace) -> int:
    designs = [get_design(name) for name in dict.fromkeys(args.design)]
    check_new_folder(args.output)
    require_yosys()
    show = sys.stderr.isatty() and not args.no_progress
    reports: list[DesignReport] = []
    for index, design in enumerate(designs):
        if show:
            print(f"synth: {design.name} ({index + 1}/{len(designs)})", file=sys.stderr, flush=True)
        try:
            reports.append(synthesise_design(design, Unit(args.unit)))
        except SynthesisError as error:
            raise ValueError(f"design {design.name}: {error}") from error
    record = json.dumps(
        {"designs": [as_record(report) for report in reports], "caveats": list(CAVEATS)}, indent=2
    )
    table = as_table(reports)
    write_new_folder(args.output, {"synth.json": record + "\n", "synth.txt": table})
    print(record if args.format == "json" else table, end="\n" if args.format == "json" else "")
    return 1 if any(report.problems for report in reports) else 0


COMMAND = Command("synthesise designs with Yosys: resources against the device", _configure, _run)
