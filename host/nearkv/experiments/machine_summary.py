"""A machine's steps in numbers: plain data, CSV, text, a plot."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nearkv.command import columns
from nearkv.experiments.machine_steps import MachineReplay, MachineStep
from nearkv.machine import PS_PER_S

PS_PER_MS = 10**9


def machine_summary(replay: MachineReplay, config_batch: int) -> dict[str, Any]:
    """Means over the steps that were timed.

    `busy` is the share of the time for which each resource works; `energy_j_per_token` and
    `link_bytes_per_token` are per decoded token of one sequence; `drive_life_years` is how long writing on
    like this takes.
    """
    steps, count = replay.steps, len(replay.steps)
    time_ps = sum(step.time_ps for step in steps)
    tokens = count * config_batch
    busy = _sum(step.busy_ps for step in steps)
    return {
        "machine": replay.machine.name,
        "timed_steps": count,
        "context_tokens": [steps[0].context_tokens, steps[-1].context_tokens],
        "batch": config_batch,
        "step_ms": time_ps / count / PS_PER_MS,
        "serial_ms": sum(step.serial_ps for step in steps) / count / PS_PER_MS,
        "bound_ms": sum(step.bound_ps for step in steps) / count / PS_PER_MS,
        "tokens_per_s": tokens * PS_PER_S / time_ps,
        "busiest": max(busy, key=lambda name: busy[name]),
        "busy": {name: value / time_ps for name, value in sorted(busy.items())},
        "gpu_waits": {
            name: value / time_ps for name, value in sorted(_sum(s.gpu_stalls_ps for s in steps).items())
        },
        "link_bytes_per_token": _per(tokens, (s.link_bytes for s in steps)),
        "energy_j_per_token": _per(tokens, (s.energy_j for s in steps)),
        "write_amplification": dict(replay.write_amplification),
        "drive_wear": dict(steps[-1].wear),
        "drive_life_years": replay.life_years,
        "card_celsius": dict(steps[-1].celsius),
    }


def machine_csv(steps: Sequence[MachineStep]) -> str:
    """One line per timed step: times, busy time per resource, bytes per link, energy per component."""
    rows = [_flat(step) for step in steps]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", restval=0)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def machine_text(summary: Mapping[str, Any]) -> str:
    """The summary for a terminal."""
    first, last = summary["context_tokens"]
    context = f"{first}" if first == last else f"{first} to {last}"
    energy = sum(summary["energy_j_per_token"].values())
    life = ", ".join(f"{tier} {years:.1f} years" for tier, years in summary["drive_life_years"].items())
    waits = sorted(summary["gpu_waits"].items(), key=lambda entry: -entry[1])[:3]
    rows = [
        [
            f"{summary['step_ms']:.2f}",
            f"{summary['serial_ms']:.2f}",
            f"{summary['bound_ms']:.2f}",
            f"{summary['tokens_per_s']:.1f}",
            f"{sum(summary['link_bytes_per_token'].values()) / 1e6:.2f}",
            f"{energy:.2f}",
        ]
    ]
    heading = ["ms", "serial ms", "bound ms", "tokens/s", "link MB/token", "J/token"]
    lines = [
        f"on {summary['machine']}, batch {summary['batch']}, {context} tokens,"
        f" {summary['timed_steps']} steps timed:",
        *columns([["step", *heading], ["mean", *rows[0]]]),
        f"busiest {summary['busiest']}, {summary['busy'][summary['busiest']]:.0%} of the time;"
        f" the GPU waits for {', '.join(f'{name} {share:.0%}' for name, share in waits) or 'nothing'}",
    ]
    return "\n".join([*lines, *([f"drive life at this rate of writes: {life}"] if life else [])])


def _flat(step: MachineStep) -> dict[str, Any]:
    row: dict[str, Any] = {
        "step": step.step,
        "context_tokens": step.context_tokens,
        "time_ps": step.time_ps,
        "serial_ps": step.serial_ps,
        "bound_ps": step.bound_ps,
    }
    for prefix, values in (
        ("busy_ps", step.busy_ps),
        ("link_bytes", step.link_bytes),
        ("energy_j", step.energy_j),
        ("celsius", step.celsius),
        ("wear", step.wear),
    ):
        row |= {f"{prefix}: {name}": value for name, value in values.items()}
    return row


def _sum(parts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _per(tokens: int, parts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return {name: value / tokens for name, value in sorted(total.items())}
