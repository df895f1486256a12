"""What a sub-command of `nearkv` is; packages contribute theirs through entry points `nearkv.commands`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points

INTERRUPTED = 130  # exit code, as a shell gives it after SIGINT
Progress = Callable[[int, int], None]  # (done, planned)


@dataclass(frozen=True)
class Command:
    """One sub-command.

    `configure` adds arguments to the command's own parser; `run` does the work and returns the exit code
    (0 success, 1 a check that failed). Bad input is a ValueError or OSError, which `nearkv.cli` turns into
    one line on stderr and exit code 2.
    """

    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def load_commands(arguments: Sequence[str] = ()) -> dict[str, Command]:
    """Installed commands by name, in alphabetical order.

    Only the one that `arguments` begin with, if they do: the others' modules need not be imported for it.
    """
    found = {point.name: point for point in entry_points(group="nearkv.commands")}
    names = [name for name in arguments[:1] if name in found] or sorted(found)
    return {name: found[name].load() for name in names}


def announce(text: str, *, wanted: bool = True) -> None:
    """Say in a line of stderr what is going to take long, if wanted and stderr is a terminal."""
    if wanted and sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def progress_line(label: str, *, wanted: bool) -> Progress | None:
    """What shows `label done/planned` in one line of stderr; None unless wanted and stderr is a terminal."""
    if not (wanted and sys.stderr.isatty()):
        return None

    def show(done: int, planned: int) -> None:
        end = "\n" if done == planned else ""
        print(f"\r{label} {done}/{planned}", end=end, file=sys.stderr, flush=True)

    return show


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C for a moment, such as while results are written that took minutes to make."""
    if threading.current_thread() is not threading.main_thread():  # Python lets no other set handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows of cells: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
