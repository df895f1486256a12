"""`nearkv likelihood`: what policies cost a model, in nats per token of a text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nearkv.command import Command, columns, progress_line
from nearkv.experiments.likelihood import LikelihoodRun
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.policy.registry import find_policy

FULL = "full attention"


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policies", nargs="+", metavar="POLICY", help="of nearkv policies, or module:Class")
    parser.add_argument("--model", type=Path, required=True, metavar="FILE.gguf", help="llama architecture")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE.txt", help="UTF-8")
    parser.add_argument("--context-tokens", type=int, default=2048, metavar="N", help="default: 2048")
    parser.add_argument("--steps", type=int, default=256, help="last tokens, which are judged; default: 256")
    parser.add_argument("--hot-fraction", type=float, default=0.1, help="of the context; default: 0.1")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")
    parser.add_argument("--no-progress", action="store_true", help="no progress line on stderr")


def _run(args: argparse.Namespace) -> int:
    for name in args.policies:
        find_policy(name)  # before the model runs for a minute
    protocol = ReplayProtocol(
        hot_fraction=args.hot_fraction,
        select_fraction=args.hot_fraction,
        warmup_steps=0,
        scored_steps=args.steps,
    )
    run = LikelihoodRun(args.model, args.text, args.context_tokens, protocol)

    def progress(what: str) -> Any:
        return progress_line(f"{what}: layer", wanted=not args.no_progress)

    full = run.full(progress(FULL))
    rows: list[dict[str, Any]] = [{"policy": FULL, "loss": full, "delta": 0.0, "mass_kept": 1.0}]
    for name in dict.fromkeys(args.policies):
        found = run.policy(name, {}, progress(name))
        rows.append(
            {"policy": name, "loss": found.loss, "delta": found.loss - full, "mass_kept": found.mass_kept}
        )
    if args.format == "json":
        print(json.dumps(rows, indent=2))
        return 0
    lines = [
        [row["policy"], f"{row['loss']:.4f}", f"{row['delta']:+.4f}", f"{row['mass_kept']:.4f}"]
        for row in rows
    ]
    prompt = args.context_tokens - args.steps
    print(f"{args.steps} tokens after {prompt}, {args.hot_fraction:g} of the context hot")
    print("\n".join(columns([["policy", "nats/token", "more", "mass kept"], *lines])))
    return 0


COMMAND = Command("tell what policies cost a model: nats per token with the hot pool alone", _configure, _run)
