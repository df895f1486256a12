"""`nearkv waves`: one run of the scorer's cocotb bench that leaves a waveform file."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from nearkv.command import Command
from nearkv.result_folder import check_new_folder, write_new_folder
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.cosim.runner import BenchError, run_bench
from nearkv_sim.cosim.simulators import SIMULATORS, WAVES_NAME, check_simulator

_BLOCKS = 3  # both banks of the double buffers, and the first of them again
_SEED = 1


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder")
    parser.add_argument(
        "--design", default="tiny", metavar="NAME", help="one of `nearkv designs`; default: tiny"
    )
    parser.add_argument(
        "--simulator", default=SIMULATORS[0], help=f"{' or '.join(SIMULATORS)}; default: {SIMULATORS[0]}"
    )


def _run(args: argparse.Namespace) -> int:
    design = get_design(args.design)
    check_simulator(args.simulator)
    check_new_folder(args.output)
    failure = None
    with tempfile.TemporaryDirectory(prefix="nearkv-") as work:
        try:
            run_bench(
                Scorer(design),
                "nearkv_sim.benches.scorer_bench",
                name=f"scorer-{design.name}",
                simulator=args.simulator,
                seed=_SEED,
                parameters={"design": design.name, "blocks": _BLOCKS},
                output_dir=Path(work),
                waves=True,
                tests=["random_pauses"],
            )
        except BenchError as error:
            failure = error
        files = {path.name: path.read_bytes() for path in Path(work).iterdir()}
    # The waves of a failed bench are those somebody needs.
    if WAVES_NAME in files:
        write_new_folder(args.output, files)
        print(args.output / WAVES_NAME)
    if failure is not None:
        print(f"nearkv waves: {failure}", file=sys.stderr)
        return 1
    return 0


COMMAND = Command("run the scorer's bench and leave a waveform file (VCD)", _configure, _run)
