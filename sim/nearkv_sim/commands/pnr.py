"""`nearkv pnr`: highest clock, utilisation and bitstream of ECP5 designs and boards, best of some seeds."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

from nearkv.command import Command
from nearkv.result_folder import check_new_folder, write_new_folder
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.synthesis.board import BOARD_CAVEATS, BOARD_DESIGN, BOARDS, place_board
from nearkv_sim.synthesis.nextpnr import PlacementError, check_part, require_nextpnr
from nearkv_sim.synthesis.placement import (
    PLACED_UNITS,
    PLACEMENT_CAVEATS,
    as_record,
    place_design,
    table_rows,
)
from nearkv_sim.synthesis.units import Unit
from nearkv_sim.synthesis.yosys import SynthesisError, require_yosys

DEFAULT_DESIGNS = ("ulx3s_85f", "ecp5_5g_85f")
DEFAULT_SEEDS = 5
MAX_SEEDS = 1000  # minutes each
DEFAULT_SEED_MINUTES = 30.0


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--board",
        choices=BOARDS,
        help=f"the serial scorer on a board's pins, instead of scorers alone; default design: {BOARD_DESIGN}",
    )
    parser.add_argument(
        "--design",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"ECP5 designs; default: {' '.join(DEFAULT_DESIGNS)}",
    )
    parser.add_argument(
        "--unit",
        choices=[unit.value for unit in PLACED_UNITS],
        help="scorer (default), or kernel: the scorer behind AXI; not with --board",
    )
    parser.add_argument(
        "--query-group", type=int, metavar="HEADS", help="query heads instead of each design's own"
    )
    parser.add_argument(
        "--seeds", type=int, default=DEFAULT_SEEDS, metavar="N", help=f"1 to N; default: {DEFAULT_SEEDS}"
    )
    parser.add_argument(
        "--seed-minutes",
        type=float,
        default=DEFAULT_SEED_MINUTES,
        metavar="M",
        help=f"give a seed up that takes longer; default: {DEFAULT_SEED_MINUTES:g}",
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress lines on stderr")


def _run(args: argparse.Namespace) -> int:
    if not 1 <= args.seeds <= MAX_SEEDS:
        raise ValueError(f"seeds is {args.seeds}; allowed: 1 to {MAX_SEEDS}")
    if not 0 < args.seed_minutes < math.inf:
        raise ValueError(f"seed-minutes is {args.seed_minutes}; allowed: finite, above 0")
    if args.board and args.unit:
        raise ValueError(f"unit is {args.unit} with board {args.board}; allowed: one of the two")
    unit = Unit(args.unit or Unit.SCORER.value)
    names = args.design or ([BOARD_DESIGN] if args.board else DEFAULT_DESIGNS)
    designs = [get_design(name) for name in dict.fromkeys(names)]
    if args.query_group is not None:
        designs = [replace(design, query_group=args.query_group) for design in designs]
    for design in designs:
        check_part(design.device)
    check_new_folder(args.output)
    require_yosys()
    require_nextpnr()
    show = sys.stderr.isatty() and not args.no_progress
    files: dict[str, bytes] = {}
    records = []
    for design in designs:
        name = design.name

        def progress(seed: int, name: str = name) -> None:
            if show:
                print(f"pnr: {name}, seed {seed} of {args.seeds}", file=sys.stderr, flush=True)

        try:
            seeds, limit_s = range(1, args.seeds + 1), 60 * args.seed_minutes
            if args.board:
                placement = place_board(args.board, design, seeds, progress, limit_s)
            else:
                placement = place_design(design, unit, seeds, progress, limit_s)
        except (SynthesisError, PlacementError) as error:
            raise ValueError(f"design {name}: {error}") from error
        records.append(as_record(placement))
        prefix = args.board or (args.unit if unit is not Unit.SCORER else None)
        name = f"{prefix}-{name}" if prefix else name
        files[f"{name}.bit"] = placement.best.bitstream
    board = {"board": args.board} if args.board else {}
    header, rows = table_rows(records)
    lines = [": ".join(pair) for row in rows for pair in [*zip(header, row, strict=True), ("", "")]]
    caveats = BOARD_CAVEATS if args.board else PLACEMENT_CAVEATS
    text = "\n".join([*(line.rstrip(": ") for line in lines), *caveats, ""])
    files["pnr.json"] = (json.dumps({**board, "placements": records}, indent=2) + "\n").encode()
    files["pnr.txt"] = text.encode()
    write_new_folder(args.output, files)
    print(text, end="")
    return 0


COMMAND = Command(
    "place and route ECP5 designs with nextpnr: clock, utilisation, bitstream", _configure, _run
)
