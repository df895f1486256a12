"""`nearkv claims`: every figure of the two articles, with ours and the command that measures it again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nearkv.claims.claim import ClaimInputs
from nearkv.claims.published import claims_text, measure_all, published_claims
from nearkv.command import Command, progress_line

DEFAULT_TRACE = Path("data/smollm2-135m-austen-4096.safetensors")  # of a checkout


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="hillinfer, pam, or single claims; default: all"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help=f"attention trace for figures about real attention; default: {DEFAULT_TRACE} where it exists",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of standard output")
    parser.add_argument("--no-progress", action="store_true", help="no progress line on stderr")


def _run(args: argparse.Namespace) -> int:
    claims = published_claims(args.names)
    trace = args.trace
    if trace is None and DEFAULT_TRACE.exists():
        trace = DEFAULT_TRACE
    progress = progress_line("claims", wanted=not args.no_progress)
    records = measure_all(claims, ClaimInputs(trace), progress)
    print(
        json.dumps(records, indent=2, ensure_ascii=False) if args.format == "json" else claims_text(records)
    )
    return 0


COMMAND = Command("re-measure every figure of the two articles: theirs, ours, verdict", _configure, _run)
