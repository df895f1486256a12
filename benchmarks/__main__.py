"""Command line of the benches."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from benchmarks.registry import BENCHES, get_bench


def main() -> int:
    """Run the named benches, or all; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the stack's speeds.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(BENCHES)}")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    args = parser.parse_args()
    try:
        benches = {name: get_bench(name) for name in args.names or BENCHES}
    except ValueError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2
    tables = {}
    for name, bench in benches.items():
        tables[name] = bench()
        if args.format == "table":
            print(f"{tables[name].text()}\n", flush=True)
    if args.format == "json":
        print(json.dumps({name: asdict(table) for name, table in tables.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
