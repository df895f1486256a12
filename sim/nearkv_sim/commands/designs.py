"""`nearkv designs`: the named designs, or one with everything that follows from it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable

from nearkv.command import Command, columns
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, find_design
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.design_figures import DEFAULT_HEADS, DEFAULT_TOKENS, figures, make_job, overview

_JOB_OPTIONS = ("tokens", "head_dim", "heads")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one only, with derived figures")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")
    job = parser.add_argument_group("job whose cycles are shown with a NAME")
    job.add_argument("--tokens", type=int, help=f"of the context; default: {DEFAULT_TOKENS}, or all that fit")
    job.add_argument("--head-dim", type=int, metavar="CHANNELS", help="default: the design's largest")
    job.add_argument("--heads", type=int, help=f"query heads; default: {DEFAULT_HEADS}")


def _run(args: argparse.Namespace) -> int:
    options = {name: getattr(args, name) for name in _JOB_OPTIONS}
    if args.name is None:
        for name, value in options.items():
            if value is not None:
                raise ValueError(f"{name} is {value} without a design; allowed: with the NAME of one")
        if args.format == "json":
            every: list[DesignConfig | PimDesign] = [*DESIGNS.values(), *PIM_DESIGNS.values()]
            print(json.dumps([overview(design) for design in every], indent=2))
        else:
            print(_table(DESIGNS.values()), end="\n\n")
            print(_table(PIM_DESIGNS.values()))
        return 0
    design = find_design(args.name)
    content = figures(design, make_job(design, **options))
    if args.format == "json":
        print(json.dumps(content, indent=2))
    else:
        width = max(map(len, content))
        print("\n".join(f"{key.ljust(width)}  {_cell(value)}" for key, value in content.items()))
    return 0


def _table(designs: Iterable[DesignConfig | PimDesign]) -> str:
    rows = [overview(design) for design in designs]
    return "\n".join(columns([list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]))


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    return "–" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)


COMMAND = Command("list the named designs, or show what follows from one", _configure, _run)
