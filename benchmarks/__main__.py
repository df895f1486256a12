"""`python -m benchmarks [NAME ...] [--format table|json]`: run benchmarks and print their figures."""

from __future__ import annotations

import argparse
import json
import pkgutil
from dataclasses import asdict
from importlib import import_module

import benchmarks

_NOT_BENCHMARKS = {"__main__", "measure"}


def main() -> None:
    """Run the named benchmarks, or all of them."""
    known = sorted(m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name not in _NOT_BENCHMARKS)
    parser = argparse.ArgumentParser(prog="benchmarks", description=benchmarks.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"benchmark is {unknown[0]!r}; allowed: {', '.join(known)}")
    results = {name: import_module(f"benchmarks.{name}").run() for name in args.names or known}
    if args.format == "json":
        print(json.dumps({name: [asdict(row) for row in rows] for name, rows in results.items()}, indent=2))
        return
    for name, rows in results.items():
        print(name)
        width = max(len(row.case) for row in rows)
        for row in rows:
            print(
                f"  {row.case:<{width}}  {row.figure:10.4g} {row.unit:<10} {row.ratio:8.3f} × {row.reference}"
            )


if __name__ == "__main__":
    main()
