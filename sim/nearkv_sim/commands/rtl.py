"""`nearkv rtl`: Verilog of a design's scorer, with test vectors and a testbench for any simulator."""

from __future__ import annotations

import argparse
from pathlib import Path

from nearkv.command import Command
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.commands.output import check_new_folder, write_new_folder
from nearkv_sim.replay.files import render_replay

DEFAULT_BLOCKS = 18  # every head_dim and format of every design with every kind of operands
DEFAULT_SEED = 1


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--design", required=True, metavar="NAME", help="one of `nearkv designs`")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"default: {DEFAULT_SEED}")
    parser.add_argument(
        "--blocks", type=int, default=DEFAULT_BLOCKS, help=f"key blocks to record; default: {DEFAULT_BLOCKS}"
    )


def _run(args: argparse.Namespace) -> int:
    design = get_design(args.design)
    check_new_folder(args.output)
    written = render_replay(design, args.blocks, args.seed)
    write_new_folder(args.output, written)
    print(f"{args.output}: {', '.join(written)}")
    return 0


COMMAND = Command("write Verilog, test vectors and a testbench that replays them", _configure, _run)
