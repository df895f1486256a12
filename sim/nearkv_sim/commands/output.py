"""Result folders that appear whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path


def check_new_folder(path: Path) -> None:
    """Raise ValueError if something exists at `path`; for use before the work, not only after it."""
    if path.exists() or path.is_symlink():
        raise ValueError(f"{path}: exists already; a result folder is never overwritten")


def write_new_folder(path: Path, files: Mapping[str, str]) -> None:
    """Write text files by name into a new folder, which appears with its last file written.

    Raises ValueError if something exists at `path`, OSError if it cannot be written.
    """
    check_new_folder(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as work:
        staged = Path(work) / path.name
        staged.mkdir()
        for name, text in files.items():
            staged.joinpath(name).write_text(text, encoding="utf-8", newline="\n")
        staged.rename(path)
