"""The result folder: written beside its place and renamed into it, so that it is whole or absent."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nearkv.experiments.compare import Comparison
from nearkv.experiments.plots import plots
from nearkv.experiments.records import RunResult
from nearkv.experiments.report import report
from nearkv.experiments.summary import steps_csv, summarise


def check_output(folder: Path) -> None:
    """Raise ValueError if the folder exists, or cannot be made because of a file in its path."""
    if folder.exists() or folder.is_symlink():
        raise ValueError(f"output {folder} exists; allowed: a new folder, results are never overwritten")
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise ValueError(f"output {folder}: {parent} is not a folder")


def summary_json(result: RunResult, comparison: Comparison | None) -> str:
    """The summary as JSON text, with the comparison if there was one."""
    return json.dumps(_with_comparison(summarise(result), comparison), indent=2) + "\n"


def write_output(folder: Path, result: RunResult, comparison: Comparison | None) -> None:
    """Write summary.json, steps.csv, config.resolved.yaml, the plots and report.html.

    The trace's path in config.resolved.yaml is relative to that file.

    Raises:
        ValueError: the folder exists. OSError where it cannot be written; nothing is left behind.

    """
    check_output(folder)
    summary = summarise(result)
    images = plots(result)
    trace = Path(os.path.relpath(result.config.trace, folder))
    files = {
        "summary.json": summary_json(result, comparison).encode(),
        "steps.csv": steps_csv(result).encode(),
        "config.resolved.yaml": replace(result.config, trace=trace).to_yaml().encode(),
        "report.html": report(result, summary, images, comparison).encode(),
        **images,
    }
    beside = next(parent for parent in folder.absolute().parents if parent.exists())
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=beside))
    try:
        for name, content in files.items():
            (staging / name).write_bytes(content)
        staging.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _with_comparison(summary: dict[str, Any], comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return summary
    return summary | {"comparison": asdict(comparison) | {"identical": comparison.identical}}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
