"""What a result folder holds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nearkv.experiments.compare import Comparison
from nearkv.experiments.plots import plots
from nearkv.experiments.records import RunResult
from nearkv.experiments.report import report
from nearkv.experiments.summary import steps_csv, summarise
from nearkv.result_folder import write_new_folder


def summary_json(result: RunResult, comparison: Comparison | None) -> str:
    """The summary as JSON text, with the comparison if there was one."""
    return json.dumps(_with_comparison(summarise(result), comparison), indent=2) + "\n"


def write_output(folder: Path, result: RunResult, comparison: Comparison | None) -> list[str]:
    """Write summary.json, steps.csv, config.resolved.yaml, the plots and report.html into a new folder.

    Returns the files' names. The trace's path in config.resolved.yaml is relative to that file.

    Raises:
        ValueError: the folder exists. OSError where it cannot be written; nothing is left behind.

    """
    summary = summarise(result)
    images = plots(result)
    # Of real paths, since `..` behind a symbolic link leads elsewhere.
    trace = Path(os.path.relpath(result.config.trace.resolve(), folder.resolve()))
    files = {
        "report.html": report(result, summary, images, comparison).encode(),
        "summary.json": summary_json(result, comparison).encode(),
        "steps.csv": steps_csv(result).encode(),
        "config.resolved.yaml": replace(result.config, trace=trace).to_yaml().encode(),
        **images,
    }
    write_new_folder(folder, files)
    return list(files)


def _with_comparison(summary: dict[str, Any], comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return summary
    return summary | {"comparison": asdict(comparison) | {"identical": comparison.identical}}
