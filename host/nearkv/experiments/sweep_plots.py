"""Plots of a sweep: each figure against an axis of numbers, or as bars over names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nearkv.experiments.plots import COLOURS, figure_png
from nearkv.experiments.sweep import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Column, title, what a unit of the axis is, factor to it.
FIGURES = (
    ("hit_rate", "hit rate: selected tokens that were hot", "share", 1.0),
    ("mass_kept", "true attention on the attended tokens", "share", 1.0),
    ("from_device_bytes_per_token", "payload from the device per decoded token", "KB", 1e-3),
    ("time_ps_per_token", "simulated time of device and link per decoded token", "µs", 1e-6),
    ("step_ms", "time of a decode step on the machine", "ms", 1.0),
    ("energy_j_per_token", "energy per decoded token on the machine", "J", 1.0),
)


def sweep_plots(rows: Sequence[dict[str, Any]], axes: Sequence[Axis]) -> dict[str, bytes]:
    """A plot per figure that the rows have, by file name.

    The first axis of numbers is the horizontal one, the others together name the lines; without one, the
    first axis gives the bars.
    """
    numbers = [axis.key for axis in axes if all(_is_number(row[axis.key]) for row in rows)]
    across = numbers[0] if numbers else axes[0].key
    others = [axis.key for axis in axes if axis.key != across]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault(", ".join(str(row[key]) for key in others), []).append(row)
    found = {}
    for column, title, unit, factor in FIGURES:
        if all(column in row for row in rows):

            def draw(
                drawn: list[Axes],
                column: str = column,
                title: str = title,
                unit: str = unit,
                factor: float = factor,
            ) -> None:
                _draw(drawn[0], lines, across, bool(numbers), column, factor)
                drawn[0].set(title=title, xlabel=across, ylabel=unit)

            found[f"{column}.png"] = figure_png(1, 1, (8, 4), draw)
    return found


def _draw(
    ax: Axes,
    lines: dict[str, list[dict[str, Any]]],
    across: str,
    numeric: bool,
    column: str,
    factor: float,
) -> None:
    width = 0.8 / len(lines)
    for index, (name, rows) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        values = [factor * row[column] for row in rows]
        if numeric:
            points = sorted(zip([row[across] for row in rows], values, strict=True))
            ax.plot(*zip(*points, strict=True), "o-", ms=4, color=colour, label=name)
        else:
            places = [place + index * width for place in range(len(rows))]
            ax.bar(places, values, width * 0.9, color=colour, label=name)
            ax.set_xticks(range(len(rows)), [str(row[across]) for row in rows], rotation=30, ha="right")
    if len(lines) > 1:
        ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
