"""What a result folder holds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nearkv.experiments.compare import Comparison
from nearkv.experiments.machine_steps import MachineReplay
from nearkv.experiments.machine_summary import machine_csv, machine_summary
from nearkv.experiments.plots import plots
from nearkv.experiments.records import RunResult
from nearkv.experiments.report import report
from nearkv.experiments.summary import steps_csv, summarise
from nearkv.result_folder import write_new_folder
from nearkv.timeline import chrome_trace


def summary_json(
    result: RunResult, comparison: Comparison | None, replay: MachineReplay | None = None
) -> str:
    """The summary as JSON text, with the comparison and the machine's part if there was one."""
    return json.dumps(_whole(summarise(result), comparison, replay), indent=2) + "\n"


def write_output(
    folder: Path, result: RunResult, comparison: Comparison | None, replay: MachineReplay | None = None
) -> list[str]:
    """Write summary.json, steps.csv, config.resolved.yaml, the plots and report.html into a new folder.

    With steps timed on a machine also machine.csv and timeline.json, the latter for ui.perfetto.dev. The
    trace's path in config.resolved.yaml is relative to that file. Returns the files' names.

    Raises:
        ValueError: the folder exists. OSError where it cannot be written; nothing is left behind.

    """
    summary = _whole(summarise(result), comparison, replay)
    timed = replay.steps if replay is not None else []
    images = plots(result, timed)
    # Of real paths, since `..` behind a symbolic link leads elsewhere.
    trace = Path(os.path.relpath(result.config.trace.resolve(), folder.resolve()))
    files = {
        "report.html": report(result, summary, images, comparison).encode(),
        "summary.json": (json.dumps(summary, indent=2) + "\n").encode(),
        "steps.csv": steps_csv(result).encode(),
        "config.resolved.yaml": replace(result.config, trace=trace).to_yaml().encode(),
        **images,
    }
    if replay is not None and timed:
        files["machine.csv"] = machine_csv(timed).encode()
        timeline = chrome_trace(replay.spans, replay.samples, process=replay.machine.name)
        files["timeline.json"] = timeline.encode()
    write_new_folder(folder, files)
    return list(files)


def _whole(
    summary: dict[str, Any], comparison: Comparison | None, replay: MachineReplay | None
) -> dict[str, Any]:
    if replay is not None and replay.steps:
        summary |= {"machine": machine_summary(replay, summary["config"]["batch"])}
    if comparison is not None:
        summary |= {"comparison": asdict(comparison) | {"identical": comparison.identical}}
    return summary
