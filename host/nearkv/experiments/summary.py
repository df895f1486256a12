"""A run in numbers: per stream and in total, as plain data and as a text table."""

from __future__ import annotations

import csv
import io
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np

from nearkv.command import columns
from nearkv.experiments.config import Selection
from nearkv.experiments.records import RunResult, StepRecord

PS_PER_US = 1_000_000
MEANS = ("hit_rate", "mass_kept", "output_error")
SUMS = (
    "scored_blocks",
    "fetched_tokens",
    "promoted_tokens",
    "promotion_read_tokens",
    "demoted_tokens",
    "to_device_bytes",
    "from_device_bytes",
    "device_cycles",
    "score_time_ps",
    "fetch_time_ps",
    "seal_time_ps",
    "promote_time_ps",
    "time_ps",
)


def summarise(result: RunResult) -> dict[str, Any]:
    """Everything but the single steps.

    Under `streams`, quality fields are means over the steps and traffic, cycles and time are totals; under
    `total`, quality is the mean over the streams and the rest the sum. `per_token` divides the totals by
    the steps: one decoded token costs one step of every stream, one after the other.
    """
    streams = [_summarise_stream(name, result.of_stream(name)) for name in result.streams]
    total: dict[str, Any] = {name: _mean(stream[name] for stream in streams) for name in MEANS}
    total["recall_mean"] = _mean(stream["recall_mean"] for stream in streams)
    total["recall_worst_head"] = min(stream["recall_worst_head"] for stream in streams)
    total |= {name: sum(stream[name] for stream in streams) for name in SUMS}
    return {
        "config": result.config.to_mapping() | {"trace": result.config.trace.name},
        "trace_sha256": result.trace_sha256,
        "versions": {name: version(name) for name in ("nearkv", "numpy")}
        | {"python": platform.python_version()},
        "notes": list(result.config.notes),
        "complete": result.complete,
        "steps": result.steps,
        "planned_steps": result.planned_steps,
        "prefill": asdict(result.prefill),
        "streams": streams,
        "total": total,
        "per_token": {name: total[name] / result.steps for name in SUMS},
    }


def steps_csv(result: RunResult) -> str:
    """One line per step and stream, the fields of `StepRecord` as columns."""
    text = io.StringIO()
    rows = [record.flat() for record in result.records]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table(result: RunResult) -> str:
    """The summary for a terminal; traffic, cycles and time are per decoded token."""
    config = result.config
    summary = summarise(result)
    scoring = config.format.value if config.selection is Selection.SCORE_ALL else "nothing scored"
    head = (
        f"{config.policy.name}, {config.selection.value}, {scoring}: {result.steps} steps of"
        f" {len(result.streams)} streams on {config.design} over {config.transport}; per decoded token"
    )
    rows = [_row(stream["stream"], stream, result.steps) for stream in summary["streams"]]
    rows.append(_row("all", summary["total"], result.steps))
    lines = [head, *columns([_COLUMNS, *rows])]
    lines += [f"note: {note}" for note in config.notes]
    if not result.complete:
        lines.append(f"incomplete: {result.steps} of {result.planned_steps} steps")
    return "\n".join(lines)


_COLUMNS = (
    "stream",
    "hit rate",
    "mass kept",
    "output error",
    "recall",
    "worst head",
    "fetched",
    "promoted",
    "KB out",
    "KB in",
    "cycles",
    "time us",
)


def _row(name: str, values: dict[str, Any], steps: int) -> tuple[str, ...]:
    return (
        name,
        f"{values['hit_rate']:.4f}",
        f"{values['mass_kept']:.4f}",
        f"{values['output_error']:.4f}",
        f"{values['recall_mean']:.4f}",
        f"{values['recall_worst_head']:.4f}",
        f"{values['fetched_tokens'] / steps:.1f}",
        f"{values['promoted_tokens'] / steps:.1f}",
        f"{values['to_device_bytes'] / steps / 1e3:.1f}",
        f"{values['from_device_bytes'] / steps / 1e3:.1f}",
        f"{values['device_cycles'] / steps:.0f}",
        f"{values['time_ps'] / steps / PS_PER_US:.1f}",
    )


def _summarise_stream(name: str, records: list[StepRecord]) -> dict[str, Any]:
    recall = np.array([record.recall for record in records]).mean(axis=0)
    content: dict[str, Any] = {"stream": name}
    content |= {field: _mean(getattr(record, field) for record in records) for field in MEANS}
    content["recall_mean"] = float(recall.mean())
    content["recall_worst_head"] = float(recall.min())
    content["recall_per_head"] = recall.tolist()
    return content | {field: sum(getattr(record, field) for record in records) for field in SUMS}


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))
