"""`nearkv rtl`: Verilog of a design, test vectors, testbench; a card's kernel and package, or its top."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nearkv.command import Command, announce
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import find_design
from nearkv_hdl.top.kernel import MODULE_NAME, Kernel
from nearkv_hdl.top.native_pcie import MODULE_NAME as NATIVE_NAME
from nearkv_hdl.top.native_pcie import NativePcie
from nearkv_hdl.verilog import to_verilog
from nearkv_sim.commands.output import check_new_folder, write_new_folder
from nearkv_sim.packaging.files import package_files
from nearkv_sim.packaging.kernel import CARDS
from nearkv_sim.replay.files import render_replay
from nearkv_sim.replay.pim import render_pim_replay

DEFAULT_SEED = 1
NATIVE_DESIGN = "native_pcie"
DURATION = "up to a minute of CPU time"
BESIDE_REPLAY = """
Beside the replay: `{0}.v`, module `{0}`, the scorer with its buses. No testbench here drives it; {1}.
"""
# Every head_dim and format of every scorer with every kind of operands; every kind of head.
SCORER_DEFAULTS: dict[str, Any] = {"blocks": 18}
PIM_DEFAULTS: dict[str, Any] = {"heads": 4, "unit_tokens": 8, "merge": Merge.EXACT.name.lower()}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--design", required=True, metavar="NAME", help="one of `nearkv designs`")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"default: {DEFAULT_SEED}")
    scorer = parser.add_argument_group("scorer designs")
    scorer.add_argument(
        "--blocks", type=int, help=f"key blocks to record; default: {SCORER_DEFAULTS['blocks']}"
    )
    pim = parser.add_argument_group("PIM designs")
    pim.add_argument("--heads", type=int, help=f"heads to record; default: {PIM_DEFAULTS['heads']}")
    pim.add_argument(
        "--unit-tokens",
        type=int,
        metavar="TOKENS",
        help=f"tokens of a head in every processing unit; default: {PIM_DEFAULTS['unit_tokens']}",
    )
    pim.add_argument(
        "--merge",
        choices=[merge.name.lower() for merge in Merge],
        help=f"how partial results are combined; default: {PIM_DEFAULTS['merge']}",
    )


def _run(args: argparse.Namespace) -> int:
    design = find_design(args.design)
    if isinstance(design, DesignConfig):
        options = _options(args, "scorer", SCORER_DEFAULTS, PIM_DEFAULTS)
    else:
        options = _options(args, "PIM", PIM_DEFAULTS, SCORER_DEFAULTS)
    check_new_folder(args.output)
    if isinstance(design, DesignConfig):
        written = render_replay(design, options["blocks"], args.seed)
        if design.name in CARDS:
            written |= package_files(design)
            announce(f"{MODULE_NAME}.v: {DURATION}")
            written["README.md"] += BESIDE_REPLAY.format(MODULE_NAME, "its package is in `package/`")
            written[f"{MODULE_NAME}.v"] = to_verilog(Kernel(design), name=MODULE_NAME)
        if design.name == NATIVE_DESIGN:
            announce(f"{NATIVE_NAME}.v: {DURATION}")
            written["README.md"] += BESIDE_REPLAY.format(NATIVE_NAME, "it has no package")
            written[f"{NATIVE_NAME}.v"] = to_verilog(NativePcie(design), name=NATIVE_NAME)
    else:
        options["merge"] = Merge[options["merge"].upper()]
        written = render_pim_replay(design, seed=args.seed, **options)
    write_new_folder(args.output, written)
    print(f"{args.output}: {', '.join(written)}")
    return 0


def _options(
    args: argparse.Namespace, kind: str, own: dict[str, Any], others: dict[str, Any]
) -> dict[str, Any]:
    """The options of this kind of design; ValueError for one of the other kind."""
    for name in others:
        if (value := getattr(args, name)) is not None:
            allowed = ", ".join(f"--{option.replace('_', '-')}" for option in own)
            raise ValueError(
                f"{name} is {value} with {kind} design {args.design}; allowed for it: --seed, {allowed}"
            )
    return {
        name: default if getattr(args, name) is None else getattr(args, name) for name, default in own.items()
    }


COMMAND = Command(
    "write Verilog, test vectors and a testbench that replays them; of cards the kernel and its package, too",
    _configure,
    _run,
)
