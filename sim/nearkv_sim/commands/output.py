"""Result folders of text files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nearkv import result_folder
from nearkv.result_folder import check_new_folder

__all__ = ["check_new_folder", "write_new_folder"]


def write_new_folder(path: Path, files: Mapping[str, str]) -> None:
    """Write text files as UTF-8; otherwise as `nearkv.result_folder.write_new_folder`."""
    result_folder.write_new_folder(path, {name: text.encode() for name, text in files.items()})
