"""The `nearkv` command line: finds the installed commands, runs one, and keeps errors to one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from nearkv.command import load_commands


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0 success, 1 failed check, 2 bad input, 130 interrupted)."""
    parser = argparse.ArgumentParser(
        prog="nearkv", description="Attention computed where the KV cache lives.", allow_abbrev=False
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands = load_commands()
    for name, command in commands.items():
        sub = subparsers.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        command.configure(sub)
    args = parser.parse_args(argv)
    try:
        return commands[args.command].run(args)
    except (ValueError, OSError) as error:
        # NEARKV_TRACEBACK=1 tells a bug in nearkv from bad input.
        if os.environ.get("NEARKV_TRACEBACK") == "1":
            raise
        print(f"nearkv {args.command}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"nearkv {args.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
