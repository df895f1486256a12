"""`nearkv machine`: describe a machine and say how long transfers, scans and attention take, and why."""

from __future__ import annotations

import argparse
import json

from nearkv.command import Command
from nearkv_sim.hardware.machine import machine_names, open_machine
from nearkv_sim.hardware.machine_report import (
    describe,
    describe_attention,
    describe_endless,
    describe_step,
)
from nearkv_sim.hardware.machine_step import decode_time, prefill_time
from nearkv_sim.hardware.machine_text import text
from nearkv_sim.hardware.model_shapes import model_names, named_model
from nearkv_sim.validation.claims import claims_about, claims_table, record

DEFAULT_CONTEXT_TOKENS = 32768
DEFAULT_BATCH = 1
DEFAULT_SELECT_FRACTION = 0.1


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "machine", nargs="?", help=f"one of {', '.join(machine_names())}, or a YAML file; default: list them"
    )
    parser.add_argument("--model", help=f"with attention of one decode step: {', '.join(model_names())}")
    parser.add_argument(
        "--context", type=int, metavar="TOKENS", help=f"per sequence; default: {DEFAULT_CONTEXT_TOKENS}"
    )
    parser.add_argument("--batch", type=int, metavar="N", help=f"sequences; default: {DEFAULT_BATCH}")
    parser.add_argument(
        "--select",
        type=float,
        metavar="SHARE",
        help=f"of the rows, fetched where a scorer selects; default: {DEFAULT_SELECT_FRACTION}",
    )
    parser.add_argument(
        "--shares", action="store_true", help="the shares its article claims, theirs and ours"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of standard output")


def _run(args: argparse.Namespace) -> int:
    workload = {"context": args.context, "batch": args.batch, "select": args.select}
    if args.model is None:
        for name, value in workload.items():
            if value is not None:
                raise ValueError(f"--{name} is {value}; allowed: only with --model")
    if args.machine is None:
        for name in ("model", "shares"):
            if getattr(args, name):
                raise ValueError(
                    f"--{name} needs a machine; allowed: {', '.join(machine_names())}, or a file"
                )
        return _list(args.format)
    machine = open_machine(args.machine)
    content = describe(machine)
    if args.model is not None:
        shape = named_model(args.model).config
        context = DEFAULT_CONTEXT_TOKENS if args.context is None else args.context
        batch = DEFAULT_BATCH if args.batch is None else args.batch
        select = DEFAULT_SELECT_FRACTION if args.select is None else args.select
        step = decode_time(machine, shape, context, batch, select_fraction=select)
        content["workload"] = {"model": args.model, "context": context, "batch": batch, "select": select}
        content["attention"] = describe_attention(step.attention)
        content["step"] = describe_step(step, prefill_time(machine, shape, context, batch))
        content["endless"] = describe_endless(machine, shape, batch, step)
    claims = claims_about(args.machine) if args.shares else ()
    if args.shares and not claims:
        raise ValueError(f"--shares: no article claims anything about {args.machine!r} here")
    if args.format == "json":
        if args.shares:
            content["claims"] = [record(claim) for claim in claims]
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(text(content))
        if args.shares:
            print("\n" + claims_table(claims))
    return 0


def _list(output_format: str) -> int:
    found = [(name, open_machine(name).description) for name in machine_names()]
    if output_format == "json":
        rows = [{"machine": name, "description": d.description, "source": d.source} for name, d in found]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        width = max(len(name) for name, _ in found)
        print("\n".join(f"{name.ljust(width)}  {d.description}" for name, d in found))
    return 0


COMMAND = Command(
    "describe a machine: capacities, transfers, scans, attention of a step, and why", _configure, _run
)
