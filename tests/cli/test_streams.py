"""Where the output goes: terminals that lack characters, streams that are closed."""

from __future__ import annotations

import io
import sys

import pytest

from nearkv import cli
from nearkv.command import Command


@pytest.fixture(autouse=True)
def _printing(monkeypatch) -> None:
    def run(_args):
        print("β = 25.7 × α")
        return 0

    monkeypatch.setattr(cli, "load_commands", lambda *_: {"rtl": Command("", lambda _: None, run)})


def test_a_terminal_that_lacks_a_character_gets_the_rest(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert cli.main(["rtl"]) == 0
    assert written.getvalue() == b"\\u03b2 = 25.7 \\xd7 \\u03b1\n"


def test_a_closed_standard_output_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["rtl"]) == 0
