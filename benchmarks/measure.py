"""Timing of competing functions side by side, and the row a benchmark reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of a benchmark's table: what was run, its figure, and its ratio to the reference row."""

    case: str
    figure: float
    unit: str
    ratio: float
    reference: str


def median_seconds(functions: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
    """Median CPU time of each function, called in turn so that a slow moment strikes them all."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.process_time()
            function()
            times[name].append(time.process_time() - start)
    return {name: median(values) for name, values in times.items()}
