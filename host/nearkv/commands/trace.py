"""`nearkv trace`: capture an attention trace from a model and a text, or describe one."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from nearkv.command import Command, progress_line
from nearkv.trace.capture import CaptureRequest, capture
from nearkv.trace.format import read_trace, write_trace
from nearkv.trace.summary import summarise


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    what = "run a GGUF model over a text and keep keys, values and queries"
    make = actions.add_parser("capture", help=what, description=what, allow_abbrev=False)
    make.add_argument("--model", type=Path, required=True, metavar="FILE.gguf", help="llama architecture")
    make.add_argument("--text", type=Path, required=True, metavar="FILE.txt", help="UTF-8")
    make.add_argument(
        "--text-licence", default="unspecified", help="SPDX identifier or words, kept in the trace"
    )
    make.add_argument("--context-tokens", type=int, required=True, help="tokens read, from the text's start")
    make.add_argument("--layers", required=True, help="from 0, for example 2,12,20,29")
    make.add_argument(
        "--kv-heads", required=True, help="from 0, for every layer: 0,1; or per layer, LAYER:HEAD: 2:0,12:1"
    )
    make.add_argument("--queries", type=int, required=True, help="last tokens whose queries are kept")
    make.add_argument("--output", type=Path, required=True, metavar="FILE", help="must not exist")
    make.add_argument(
        "--perplexity", action="store_true", help="print the text's perplexity (runs every layer)"
    )
    make.add_argument("--no-progress", action="store_true", help="no progress line on stderr")

    what = "describe and check a trace"
    info = actions.add_parser("info", help=what, description=what, allow_abbrev=False)
    info.add_argument("file", type=Path, metavar="FILE")
    info.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")


def _run(args: argparse.Namespace) -> int:
    return _capture(args) if args.action == "capture" else _info(args)


def _capture(args: argparse.Namespace) -> int:
    # Before minutes of work, not after.
    if args.output.exists():
        raise ValueError(f"{args.output}: exists already; a trace is never overwritten")
    if not args.output.parent.is_dir():
        raise ValueError(f"{args.output}: the folder {args.output.parent} does not exist")
    layers = tuple(_integers(args.layers, "--layers"))
    request = CaptureRequest(
        model=args.model,
        text=args.text,
        context_tokens=args.context_tokens,
        layers=layers,
        kv_heads=_kv_heads(args.kv_heads, layers),
        queries=args.queries,
        text_licence=args.text_licence,
        command=_portable_command(args),
        perplexity=args.perplexity,
    )
    result = capture(request, progress_line("capture: layer", wanted=not args.no_progress))
    write_trace(args.output, result.trace)
    print(f"{args.output}: {len(result.trace.streams)} streams of {args.context_tokens} tokens")
    if result.perplexity is not None:
        print(f"perplexity of {args.context_tokens} tokens: {result.perplexity:.4f}")
    return 0


def _info(args: argparse.Namespace) -> int:
    summary: dict[str, Any] = {"file": str(args.file), "size_bytes": args.file.stat().st_size}
    summary |= summarise(read_trace(args.file))
    if args.format == "json":
        print(json.dumps(summary, indent=2))
        return 0
    streams = summary.pop("streams")
    flat = {
        f"{key}.{name}" if name else key: item
        for key, value in summary.items()
        for name, item in (value.items() if isinstance(value, dict) else [("", value)])
    }
    width = max(map(len, flat))
    for key, value in flat.items():
        print(f"{key:{width}}  {value}")
    print(f"\n{'stream':8} {'max |key|':>10} {'max |value|':>12} {'max |query|':>12} {'mass on token 0':>16}")
    for stream in streams:
        print(
            f"{stream['name']:8} {stream['key_abs_max']:10.3f} {stream['value_abs_max']:12.3f} "
            f"{stream['query_abs_max']:12.3f} {stream['first_token_mass']:16.4f}"
        )
    return 0


def _integers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r} is not a list of integers such as 0,1") from None


def _kv_heads(text: str, layers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    if ":" not in text:
        return (tuple(_integers(text, "--kv-heads")),) * len(layers)
    heads: dict[int, list[int]] = {layer: [] for layer in layers}
    for part in text.split(","):
        try:
            layer, head = map(int, part.split(":"))
        except ValueError:
            raise ValueError(f"--kv-heads {part!r} is not LAYER:HEAD") from None
        if layer not in heads:
            raise ValueError(f"--kv-heads {part!r}: layer {layer} is not among --layers {layers}")
        heads[layer].append(head)
    return tuple(tuple(heads[layer]) for layer in layers)


def _portable_command(args: argparse.Namespace) -> str:
    """The command that makes this trace again, with file names but no folders, which differ by machine."""
    words = ["nearkv", "trace", "capture", "--model", args.model.name, "--text", args.text.name]
    words += ["--text-licence", args.text_licence, "--context-tokens", str(args.context_tokens)]
    words += ["--layers", args.layers, "--kv-heads", args.kv_heads, "--queries", str(args.queries)]
    return shlex.join([*words, "--output", args.output.name])


COMMAND = Command(help="capture or describe an attention trace", configure=_configure, run=_run)
