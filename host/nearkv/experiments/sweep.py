"""Runs of one configuration over a grid of values."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearkv.experiments.config import ExperimentConfig, load_config
from nearkv.experiments.machine_steps import MachineReplay
from nearkv.experiments.machine_summary import machine_summary
from nearkv.experiments.observer import RunObserver
from nearkv.experiments.runner import open_device, run_experiment
from nearkv.experiments.strict import load_value
from nearkv.experiments.summary import SUMS, summarise
from nearkv.trace.format import AttentionTrace, read_trace

MAX_CELLS = 1000  # each takes seconds
QUALITY = ("hit_rate", "mass_kept", "output_error", "recall_mean", "recall_worst_head")
PER_TOKEN = tuple(name for name in SUMS if name != "scored_blocks")
MACHINE = ("step_ms", "serial_ms", "bound_ms", "tokens_per_s")


@dataclass(frozen=True)
class Axis:
    """A key of the configuration and the values it takes, as written."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One run: its values, by key, and its configuration."""

    values: dict[str, str]
    config: ExperimentConfig


def parse_axes(words: Sequence[str]) -> tuple[list[Axis], list[str]]:
    """Split `key=value,value` from plain overrides; a value in brackets or quotes keeps its commas.

    Raises:
        ValueError: no axis, an axis or value given twice, an empty value, or not key=value.

    """
    axes: list[Axis] = []
    overrides = []
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise ValueError(f"override is {word!r}; allowed: key=value, or key=value,value for an axis")
        values = _split(text)
        if len(values) == 1:
            overrides.append(word)
            continue
        if any(axis.key == key for axis in axes):
            raise ValueError(f"axis {key} is given twice; allowed: once")
        if not all(values):
            raise ValueError(f"axis is {word!r}; allowed: no empty value")
        if len(set(values)) < len(values):
            raise ValueError(f"axis is {word!r}; allowed: each value once")
        axes.append(Axis(key, tuple(values)))
    if not axes:
        raise ValueError("no axis is given; allowed: at least one key=value,value")
    return axes, overrides


def _split(text: str) -> list[str]:
    """Cut at commas outside of brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return [part.strip() for part in parts]


def sweep_cells(path: Path, axes: Sequence[Axis], overrides: Sequence[str]) -> list[Cell]:
    """The grid, last axis fastest; every configuration is checked here, before the first run.

    Raises:
        ValueError: more than MAX_CELLS, or a value that is not allowed. OSError as `load_config`.

    """
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_CELLS:
        raise ValueError(f"the grid has {count} cells; allowed: up to {MAX_CELLS}")
    cells = []
    for chosen in itertools.product(*(axis.values for axis in axes)):
        values = dict(zip((axis.key for axis in axes), chosen, strict=True))
        words = [*overrides, *(f"{key}={value}" for key, value in values.items())]
        cells.append(Cell(values, load_config(path, words)))
    return cells


def run_sweep(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """Run one cell after the other and give each one's row, as soon as it is there.

    A row holds the values of the axes; quality, traffic and time per decoded token; a machine's times.
    """
    traces: dict[Path, AttentionTrace] = {}
    for cell in cells:
        config = cell.config
        if config.trace not in traces:
            traces[config.trace] = read_trace(config.trace)
        replay = None if config.machine is None else MachineReplay(config)
        with open_device(config) as device:
            observers = [RunObserver(replay, None).observe]
            result = run_experiment(config, traces[config.trace], device, observers=observers)
        if not result.complete:
            raise KeyboardInterrupt
        summary = summarise(result)
        row: dict[str, Any] = {key: load_value(value) for key, value in cell.values.items()}
        row |= {name: summary["total"][name] for name in QUALITY}
        row |= {f"{name}_per_token": summary["per_token"][name] for name in PER_TOKEN}
        if replay is not None:
            timed = machine_summary(replay, config.batch)
            row |= {name: timed[name] for name in MACHINE}
            row |= {"energy_j_per_token": sum(timed["energy_j_per_token"].values())}
            row |= {"link_bytes_per_token": sum(timed["link_bytes_per_token"].values())}
            row |= {"busiest": timed["busiest"]}
        yield row


def sweep_csv(rows: Sequence[dict[str, Any]]) -> str:
    """One line per cell; columns a cell does not have stay empty."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
