"""The `nearkv` command line: finds the installed commands, runs one, and keeps errors to one line."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from nearkv.command import load_commands

BROKEN_PIPE = 128 + 13  # what a shell reports of a program that SIGPIPE ended


class _Parser(argparse.ArgumentParser):
    """Refuses in one line, like everything else here; `--help` shows the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    0 success, 1 failed check, 2 bad input, 130 interrupted, BROKEN_PIPE if nobody reads the output any more.
    """
    what = "nearkv"
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks β or − gets the rest
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        parser = _Parser(
            prog=what, description="Attention computed where the KV cache lives.", allow_abbrev=False
        )
        parser.add_argument("--version", action="version", version=f"nearkv {version('nearkv')}")
        subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
        commands = load_commands(arguments)
        for name, command in commands.items():
            sub = subparsers.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
            command.configure(sub)
        args = parser.parse_args(arguments)
        if args.command is None:
            parser.print_help(sys.stderr)
            return 2
        what = f"nearkv {args.command}"
        code = commands[args.command].run(args)
        if sys.stdout is not None:  # as it is where it was closed before the start
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough: end as a program in C would
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (ValueError, OSError) as error:
        # NEARKV_TRACEBACK=1 tells a bug in nearkv from bad input.
        if os.environ.get("NEARKV_TRACEBACK") == "1":
            raise
        _drop_quietly()
        print(f"{what}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # loading the commands takes a second, too
        _drop_quietly()
        print(f"{what}: interrupted", file=sys.stderr)
        return 130


def _drop_quietly() -> None:
    """Keep what is thrown away unfinished, such as a hardware design half built, from warning of it."""
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main())
