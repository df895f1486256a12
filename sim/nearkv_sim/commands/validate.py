"""`nearkv validate`: every hardware model against published figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nearkv.command import Command, progress_line
from nearkv.result_folder import check_new_folder, write_new_folder
from nearkv_sim.validation.areas import AREAS, area_checks, outcome_record, outcomes_table, run_checks
from nearkv_sim.validation.claims import claims, claims_table, record
from nearkv_sim.validation.plots import figures


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--area",
        nargs="+",
        default=list(AREAS),
        metavar="AREA",
        help=f"some of {', '.join(AREAS)}; default: all",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of standard output")
    parser.add_argument("--output", type=Path, metavar="DIR", help="new folder for table, JSON and plots")
    parser.add_argument("--no-progress", action="store_true", help="no progress line on stderr")


def _run(args: argparse.Namespace) -> int:
    checks = area_checks(args.area)
    if args.output is not None:
        check_new_folder(args.output)
    outcomes = run_checks(checks, progress_line("validate", wanted=not args.no_progress))
    selected = claims() if "machines" in args.area else ()
    content = {
        "checks": [outcome_record(outcome) for outcome in outcomes],
        "claims": [record(claim) for claim in selected],
    }
    record_text = json.dumps(content, indent=2, ensure_ascii=False)
    table = outcomes_table(outcomes)
    if selected:
        table += "\n\n" + claims_table(selected)
    if args.output is not None:
        files = {"validation.json": record_text + "\n", "validation.txt": table + "\n"}
        encoded = {name: text.encode() for name, text in files.items()}
        write_new_folder(args.output, encoded | figures(outcomes))
    print(record_text if args.format == "json" else table)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


COMMAND = Command("hold every hardware model against published figures", _configure, _run)
