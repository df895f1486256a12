"""`nearkv run`: one experiment on one transport, or on two that have to agree."""

from __future__ import annotations

import argparse
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearkv.command import INTERRUPTED, Command, announce, interrupts_ignored, progress_line
from nearkv.experiments.compare import Comparison, compare
from nearkv.experiments.config import ExperimentConfig, load_config
from nearkv.experiments.described import attributes
from nearkv.experiments.machine_steps import MachineReplay
from nearkv.experiments.machine_summary import machine_summary, machine_text
from nearkv.experiments.observer import RunObserver
from nearkv.experiments.output import summary_json, write_output
from nearkv.experiments.records import RunResult
from nearkv.experiments.runner import open_device, run_experiment
from nearkv.experiments.summary import table
from nearkv.integrations.prometheus import MetricsEndpoint
from nearkv.result_folder import check_new_folder
from nearkv.trace.format import read_trace

COLUMNS_HELP = """\
columns of the table:
  hit rate         share of the selected tokens that were in the hot pool
  mass kept        true attention on the tokens attended
  output error     relative L2 error of the attention output against full attention
  recall           share of the true top tokens that the scores place there; mean, and worst query head
  fetched          tokens whose rows were read from the device for the step
  promoted         tokens that became hot after it
  KB out, KB in    payload to and from the device, in 1,000 bytes
  cycles, time us  clock cycles of the scoring jobs; simulated time of device and link
The row of a stream is the mean over the steps; `all` is the mean of the streams' quality and the sum of the
rest, which is what one decoded token costs."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"keys of a configuration:\n{_keys_help()}\n\n{COLUMNS_HELP}"
    parser.add_argument("config", type=Path, metavar="CONFIG.yaml", help="the keys below, as YAML")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="such as policy.name=recency, policy.options.decay_shift=2 or steps=16",
    )
    parser.add_argument("--seed", type=int, help="short for seed=N")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--transport", help="short for transport=NAME")
    where.add_argument(
        "--compare",
        metavar="A,B",
        help="run on both transports; exit code 1 unless everything but time is equal",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")
    parser.add_argument("--output", type=Path, metavar="DIR", help="new folder for results, plots and report")
    parser.add_argument(
        "--tlp-log",
        type=Path,
        metavar="DIR",
        help="new folder for every PCIe packet of a run, as lines of JSON in DIR/<transport>.jsonl",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve metrics for Prometheus on 127.0.0.1 while the run lasts; 0: any free port",
    )
    parser.add_argument("--no-progress", action="store_true", help="no lines about progress on stderr")
    _accept_overrides_anywhere(parser)


def _keys_help() -> str:
    keys = attributes(ExperimentConfig)
    indent = 2 + max(map(len, keys), default=0) + 2
    return "\n".join(
        textwrap.fill(f"  {key}".ljust(indent) + meaning, 100, subsequent_indent=" " * indent)
        for key, meaning in keys.items()
    )


def _accept_overrides_anywhere(parser: argparse.ArgumentParser) -> None:
    """Let `key=value` follow options, too; argparse takes a `*` positional only where it first could."""
    parse = parser.parse_known_args

    def parse_known_args(args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        namespace, rest = parse(args, namespace)
        namespace.overrides += [word for word in rest if not word.startswith("-")]
        return namespace, [word for word in rest if word.startswith("-")]

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _run(args: argparse.Namespace) -> int:
    overrides = list(args.overrides)
    if args.seed is not None:
        overrides.append(f"seed={args.seed}")
    if args.transport is not None:
        overrides.append(f"transport={args.transport}")
    transports = _pair(args.compare)
    if transports and (named := [word for word in overrides if word.startswith("transport=")]):
        raise ValueError(f"override is {named[0]!r} with --compare {args.compare}; allowed: one of them")
    config = load_config(args.config, overrides)
    if args.output is not None:
        check_new_folder(args.output)  # before the work, not after
    if args.tlp_log is not None:
        check_new_folder(args.tlp_log)
    trace = read_trace(config.trace)
    config.streams_of(trace)
    configs = [replace(config, transport=name) for name in transports] or [config]
    results: list[RunResult] = []
    with ExitStack() as stack:
        replay = None if config.machine is None else MachineReplay(config)
        endpoint = None
        if args.metrics_port is not None:
            endpoint = stack.enter_context(MetricsEndpoint(args.metrics_port))
            print(f"metrics: http://127.0.0.1:{endpoint.port}/metrics", file=sys.stderr)
        observers = [RunObserver(replay, endpoint).observe]
        # All are opened first: an unknown name must not come to light after minutes on the other.
        devices = []
        for one in configs:
            # A transport that runs RTL compiles it the first time: minutes in which nothing else is shown.
            announce(
                f"{one.transport}: opening, the first time minutes with RTL", wanted=not args.no_progress
            )
            devices.append(stack.enter_context(open_device(one, args.tlp_log)))
        for one, device in zip(configs, devices, strict=True):
            announce(f"{one.transport}: writing the prompt's blocks", wanted=not args.no_progress)
            progress = progress_line(f"{one.transport}: step", wanted=not args.no_progress)
            # Nothing that a machine or a monitor is told depends on the transport: the first run tells it.
            results.append(run_experiment(one, trace, device, progress, observers if not results else ()))
            if not results[-1].complete:
                break
    if results[0].steps == 0:
        raise KeyboardInterrupt
    comparison = compare(results[0], results[1]) if len(results) == 2 and results[1].steps else None
    names = []
    try:
        if args.output is not None:
            with interrupts_ignored():
                names = write_output(args.output, results[0], comparison, replay)
    finally:  # where nothing can be written, the text is all that is left of the run
        print(_text(results[0], comparison, replay, args.format))
    if names and args.format == "table":
        print(f"{args.output}: {', '.join(names)}")
    if not all(result.complete for result in results):
        print(f"nearkv run: interrupted after {results[-1].steps} steps", file=sys.stderr)
        return INTERRUPTED
    return 0 if comparison is None or comparison.identical else 1


def _pair(text: str | None) -> list[str]:
    if text is None:
        return []
    names = text.split(",")
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise ValueError(f"--compare is {text!r}; allowed: two different transports, such as tlm,rtl")
    return names


def _text(result: RunResult, comparison: Comparison | None, replay: MachineReplay | None, form: str) -> str:
    if form == "json":
        return summary_json(result, comparison, replay).rstrip("\n")
    lines = [table(result)]
    if replay is not None and replay.steps:
        lines.append(machine_text(machine_summary(replay, result.config.batch)))
    return "\n".join([*lines, *(comparison.lines() if comparison else [])])


COMMAND = Command("run a hot/cold tier experiment on an attention trace", _configure, _run)
