"""Result folders that appear whole or not at all, for every command that writes one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

_STAGING_PREFIX = ".nearkv-"


def check_new_folder(folder: Path) -> None:
    """Refuse, before the work, a folder that could not be written after it.

    Raises:
        ValueError: something exists at `folder`, or a file lies in its path. OSError where nothing can be
            made.

    """
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"output {folder} exists; allowed: a new folder, results are never overwritten")
    parent = _existing_parent(folder)
    if not parent.is_dir():
        raise ValueError(f"output {folder}: {parent} is not a folder")
    # Permissions alone do not tell: root may write to all but a read-only medium.
    Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=parent)).rmdir()


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by name into a new folder: beside its place, then renamed into it.

    A name may lead through folders, `package/kernel.xml`; they are made.

    Raises:
        ValueError: as `check_new_folder`. OSError where it cannot be written; nothing is left behind.

    """
    check_new_folder(folder)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=_existing_parent(folder)))
    try:
        for name, content in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(content)
        staging.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _existing_parent(folder: Path) -> Path:
    """The nearest thing in the folder's path that exists, a dangling link included."""
    return next(parent for parent in folder.absolute().parents if parent.exists() or parent.is_symlink())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
