"""Timing of competing functions side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def median_cpu_seconds(functions: dict[str, Callable[[], object]], repeats: int = 9) -> dict[str, float]:
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
