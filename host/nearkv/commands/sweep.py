"""`nearkv sweep`: one configuration over a grid of values, as a table and plots."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nearkv.command import INTERRUPTED, Command, columns, interrupts_ignored, progress_line
from nearkv.experiments.sweep import Axis, parse_axes, run_sweep, sweep_cells, sweep_csv
from nearkv.experiments.sweep_plots import sweep_plots
from nearkv.result_folder import check_new_folder, write_new_folder

SHOWN = {
    "hit_rate": ("hit rate", "{:.4f}", 1.0),
    "mass_kept": ("mass kept", "{:.4f}", 1.0),
    "recall_mean": ("recall", "{:.4f}", 1.0),
    "fetched_tokens_per_token": ("fetched", "{:.1f}", 1.0),
    "from_device_bytes_per_token": ("KB in", "{:.1f}", 1e-3),
    "time_ps_per_token": ("time us", "{:.1f}", 1e-6),
    "step_ms": ("machine ms", "{:.2f}", 1.0),
    "energy_j_per_token": ("J", "{:.2f}", 1.0),
}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml", help="keys: see nearkv run --help")
    parser.add_argument(
        "words",
        nargs="+",
        metavar="key=value[,value…]",
        help="several values make an axis: policy.name=hill,lru hot_fraction=0.1,0.2; one is an override",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")
    parser.add_argument("--output", type=Path, metavar="DIR", help="new folder for table, JSON and plots")
    parser.add_argument("--no-progress", action="store_true", help="no progress line on stderr")


def _run(args: argparse.Namespace) -> int:
    axes, overrides = parse_axes(args.words)
    cells = sweep_cells(args.config, axes, overrides)
    if args.output is not None:
        check_new_folder(args.output)
    rows: list[dict[str, Any]] = []
    progress = progress_line("sweep: run", wanted=not args.no_progress)
    try:
        for row in run_sweep(cells):
            rows.append(row)
            if progress is not None:
                progress(len(rows), len(cells))
    except KeyboardInterrupt:
        if not rows:
            raise
    text = json.dumps(rows, indent=2) + "\n"
    table = _table(rows, axes)
    try:
        if args.output is not None:
            files = {"sweep.csv": sweep_csv(rows), "sweep.json": text, "sweep.txt": table}
            encoded = {name: content.encode() for name, content in files.items()}
            with interrupts_ignored():
                write_new_folder(args.output, encoded | sweep_plots(rows, axes))
    finally:  # where nothing can be written, the text is all that is left of the runs
        print(text if args.format == "json" else table, end="")
    if len(rows) < len(cells):
        print(f"nearkv sweep: interrupted after {len(rows)} of {len(cells)} runs", file=sys.stderr)
        return INTERRUPTED
    return 0


def _table(rows: list[dict[str, Any]], axes: list[Axis]) -> str:
    shown = {name: how for name, how in SHOWN.items() if any(name in row for row in rows)}
    heading = [*(axis.key for axis in axes), *(title for title, _, _ in shown.values())]
    lines = [
        [
            *(str(row[axis.key]) for axis in axes),
            *(
                form.format(factor * row[name]) if name in row else "–"
                for name, (_, form, factor) in shown.items()
            ),
        ]
        for row in rows
    ]
    return "\n".join(columns([heading, *lines])) + "\n"


COMMAND = Command("run one configuration over a grid of values", _configure, _run)
