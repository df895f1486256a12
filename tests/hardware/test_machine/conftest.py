"""One machine, and files of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nearkv_sim.hardware.machine import MACHINE_FOLDER, ModelMachine, open_machine

HILLINFER = (MACHINE_FOLDER / "hillinfer.yaml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hillinfer() -> ModelMachine:
    return open_machine("hillinfer")


@pytest.fixture
def changed(tmp_path) -> Callable[[str, str], Path]:
    """Writes the first article's machine with one text replaced by another, once."""

    def write(old: str, new: str) -> Path:
        assert old in HILLINFER
        path = tmp_path / "mine.yaml"
        path.write_text(HILLINFER.replace(old, new, 1), encoding="utf-8")
        return path

    return write
