"""How much attention placement policies keep on a full trace, beside published figures and the offline bound.

Up to half an hour of CPU time, so it is not among the benches of `python -m benchmarks`;
docs/policy-results.md has the commands and what they gave.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.registry import Table
from nearkv.experiments.replay import ReplayResult, replay
from nearkv.experiments.replay_bound import churn_bound
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import ReplayStream, kv_head_streams, layer_streams
from nearkv.policy.base import Policy, StreamInfo
from nearkv.policy.registry import build_policy
from nearkv.trace.format import AttentionTrace, read_trace

MAX_CHURN = 0.05
TRAFFIC_LAYERS = 4  # every fourth layer, from 0
TRAFFIC_SELECT_FRACTION = 0.10

Row = dict[str, Any]
PolicyTable = dict[str, tuple[str, dict[str, Any]]]

# Row: (policy, options). After 512 steps of warm-up an average with decay .9 has forgotten what it started
# from, and so has a cache of the last accesses.
SHORT_MEMORY: PolicyTable = {
    "recency": ("recency", {}),
    "EMA of accesses": ("ema_access", {}),
    "EMA of mass": ("ema_mass", {}),
    "LRU": ("lru", {}),
    "forecast": ("forecast", {}),
    "oracle": ("oracle", {}),
}
# These never forget, so what they keep depends on how many steps before the scored ones they have seen.
HISTORY_STEPS = (0, 256, 1024)
LONG_MEMORY: PolicyTable = {
    "H2O": ("h2o", {"grace_fraction": 0.0}),
    "access count": ("hill", {"decay_shift": 0}),
}
TRAFFIC: PolicyTable = {
    name: SHORT_MEMORY[name] for name in ("recency", "EMA of accesses", "EMA of mass", "LRU")
}
LONG_TRAFFIC = {"access count": LONG_MEMORY["access count"]}


def main() -> int:
    """Measure what is asked for, print a table for each part, and write every stream's figures as JSON."""
    args = _parse()
    try:
        if not args.output.parent.is_dir():  # before an hour of work, not after
            raise ValueError(f"{args.output}: the folder {args.output.parent} does not exist")
        trace = read_trace(args.trace)
        token_ids = _token_ids(trace, args.model, args.text) if args.model else None
        trace = _only(trace, args.layers) if args.layers else trace
        rows: list[Row] = []
        for part in args.parts:
            measure = {"quality": _quality, "history": _history, "traffic": _traffic}[part]
            for fraction in args.hot_fractions:
                found = []
                for row in measure(trace, token_ids, fraction):
                    found.append({"part": part, "hot_fraction": fraction, **row})
                    if sys.stderr.isatty():
                        print(f"\r{part} {fraction:g} {row['stream']:8}", end="", file=sys.stderr, flush=True)
                if sys.stderr.isatty():
                    print(file=sys.stderr)
                print(f"{_summary(part, fraction, found).text()}\n", flush=True)
                rows += found
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
    except (ValueError, OSError) as error:
        print(f"policy_quality: error: {error}", file=sys.stderr)
        return 2
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy_quality", description=__doc__)
    parser.add_argument("trace", type=Path, help="a trace with the queries of its whole context")
    parser.add_argument(
        "--model", type=Path, help="the GGUF file of the trace, whose tokeniser gives token ids"
    )
    parser.add_argument("--text", type=Path, help="the text of the trace")
    parser.add_argument("--layers", type=int, nargs="+", help="default: every layer of the trace")
    parser.add_argument("--hot-fractions", type=float, nargs="+", default=[0.10, 0.20])
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("quality", "history", "traffic"),
        default=["quality", "history", "traffic"],
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    args = parser.parse_args()
    if (args.model is None) != (args.text is None):
        parser.error("--model and --text go together: both, or none for policies without token ids")
    return args


def _token_ids(trace: AttentionTrace, model: Path, text: Path) -> np.ndarray:
    from nearkv.trace.gguf_file import GgufFile
    from nearkv.trace.tokens import encode

    content = text.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != (expected := trace.header.text.sha256):
        raise ValueError(f"{text}: SHA-256 is {found}; allowed: {expected}, the text of the trace")
    return np.array(encode(GgufFile(model).metadata, content.decode())[: trace.context_tokens], np.int64)


def _only(trace: AttentionTrace, layers: list[int]) -> AttentionTrace:
    if missing := sorted(set(layers) - set(trace.header.layers)):
        raise ValueError(f"--layers has {missing[0]}; allowed: {', '.join(map(str, trace.header.layers))}")
    return replaced(trace, streams=tuple(head for head in trace.streams if head.layer in layers))


def _policies(table: PolicyTable, stream: ReplayStream) -> dict[str, Policy]:
    info = StreamInfo(stream.heads[0].layer, stream.heads[0].kv_head, stream.context_tokens)
    return {name: build_policy(policy, info, options) for name, (policy, options) in table.items()}


def _quality(trace: AttentionTrace, token_ids: np.ndarray | None, fraction: float) -> Iterator[Row]:
    protocol = ReplayProtocol(hot_fraction=fraction, select_fraction=fraction)
    for stream in kv_head_streams(trace, token_ids):
        for name, result in replay(stream, _policies(SHORT_MEMORY, stream), protocol).items():
            yield _row(stream, name, result)
        placed, upper = churn_bound(stream, protocol, MAX_CHURN)
        yield {"stream": stream.name, "policy": "offline, placed", "mass_kept": placed}
        yield {"stream": stream.name, "policy": "offline, bound", "mass_kept": upper}


def _history(trace: AttentionTrace, token_ids: np.ndarray | None, fraction: float) -> Iterator[Row]:
    protocol = ReplayProtocol(hot_fraction=fraction, select_fraction=fraction)
    for stream in kv_head_streams(trace, token_ids):
        yield from _by_history(stream, LONG_MEMORY, protocol)


def _traffic(trace: AttentionTrace, token_ids: np.ndarray | None, fraction: float) -> Iterator[Row]:
    protocol = ReplayProtocol(hot_fraction=fraction, select_fraction=TRAFFIC_SELECT_FRACTION)
    for stream in layer_streams(trace, token_ids):
        if stream.heads[0].layer % TRAFFIC_LAYERS:
            continue
        for name, result in replay(stream, _policies(TRAFFIC, stream), protocol).items():
            yield _row(stream, name, result)
        yield from _by_history(stream, LONG_TRAFFIC, protocol)


def _by_history(stream: ReplayStream, table: PolicyTable, protocol: ReplayProtocol) -> Iterator[Row]:
    for steps in HISTORY_STEPS:
        longer = replaced(protocol, warmup_steps=steps)
        for name, result in replay(stream, _policies(table, stream), longer).items():
            yield _row(stream, f"{name}, {steps} steps", result)


def _row(stream: ReplayStream, policy: str, result: ReplayResult) -> Row:
    return {
        "stream": stream.name,
        "policy": policy,
        "mass_kept": float(result.mass_kept.mean()),
        "hit_rate": float(result.hit_rate.mean()),
        "churn": result.churn,
        "traffic_cut": result.traffic_cut,
    }


def _summary(part: str, fraction: float, rows: list[Row]) -> Table:
    """Means over the streams; a figure that does not exist for a policy is left empty."""
    keys = [key for key in rows[0] if key not in ("part", "hot_fraction", "stream", "policy")]
    lines = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy]
        lines.append(
            {"policy": policy}
            | {key: f"{fmean(row[key] for row in mine):.4f}" if key in mine[0] else "" for key in keys}
        )
    streams = len({row["stream"] for row in rows})
    return Table(f"{part}, hot fraction {fraction:g}, mean over {streams} streams", lines)


if __name__ == "__main__":
    sys.exit(main())
