"""Plots of a run as PNG bytes that depend on the run alone: no date, no host, a fixed font."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from nearkv.experiments.machine_steps import MachineStep
from nearkv.experiments.records import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 110
PS_PER_SECOND = 1_000_000_000_000
TIME_PARTS = {
    "fetch_time_ps": "fetching missing rows",
    "promote_time_ps": "reading promoted rows",
    "seal_time_ps": "writing sealed blocks",
}
# Okabe-Ito: distinguishable with every kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")


def plots(result: RunResult, machine: Sequence[MachineStep] = ()) -> dict[str, bytes]:
    """Every plot by file name, in the order of the report; a machine's where steps were timed on one."""
    found = {
        "quality.png": figure_png(1, 2, (11, 3.6), lambda axes: _quality(result, axes)),
        "recall.png": figure_png(1, 1, (11, 3.4), lambda axes: _recall(result, axes[0])),
        "occupancy.png": figure_png(1, 1, (11, 3.4), lambda axes: _occupancy(result, axes[0])),
        "traffic.png": figure_png(1, 1, (11, 3.4), lambda axes: _traffic(result, axes[0])),
        "time.png": figure_png(1, 1, (11, 3.4), lambda axes: _time(result, axes[0])),
    }
    if machine:
        found["machine.png"] = figure_png(1, 2, (11, 3.8), lambda axes: _machine(machine, axes))
    return found


def figure_png(
    rows: int, columns: int, size_inches: tuple[float, float], draw: Callable[[list[Axes]], None]
) -> bytes:
    """PNG bytes of a grid of axes that `draw` fills."""
    from matplotlib.figure import Figure  # half a second that no other command should pay

    figure = Figure(figsize=size_inches, dpi=DPI, layout="constrained")
    axes = list(np.atleast_1d(figure.subplots(rows, columns)).ravel())
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="0.9")
        ax.set_axisbelow(True)
    draw(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _series(result: RunResult, field: str) -> np.ndarray:
    """A field as [steps, streams]."""
    values = [getattr(record, field) for record in result.records]
    return np.array(values, float).reshape(result.steps, len(result.streams))


def _quality(result: RunResult, axes: list[Axes]) -> None:
    for ax, field, title in (
        (axes[0], "hit_rate", "hit rate: selected tokens that were hot"),
        (axes[1], "mass_kept", "true attention mass on the attended tokens"),
    ):
        series = _series(result, field)
        for index, name in enumerate(result.streams):
            ax.plot(series[:, index], color=_colour(index), linewidth=1, label=name)
        ax.plot(series.mean(axis=1), color="black", linewidth=2, label="mean")
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("decode step")
        ax.set_ylabel("share")
        ax.set_ylim(top=1.005)
    axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _recall(result: RunResult, ax: Axes) -> None:
    recall = np.array([[record.recall for record in result.of_stream(name)] for name in result.streams])
    mean, worst = recall.mean(axis=1), recall.min(axis=1)  # [streams, heads]
    heads = mean.shape[1]
    width = 0.8 / heads
    for head in range(heads):
        x = np.arange(len(mean)) + (head - (heads - 1) / 2) * width
        below = mean[:, head] - worst[:, head]
        ax.bar(x, mean[:, head], width * 0.9, color=_colour(head), label=f"query head {head}")
        ax.errorbar(x, mean[:, head], [below, 0 * below], fmt="none", ecolor="0.3", capsize=3, linewidth=1)
    ax.set_xticks(np.arange(len(mean)), result.streams)
    # The bars differ in the last per cents; the axis starts where they do and says so.
    low = max(0.0, float(np.floor(worst.min() * 50 - 1) / 50))
    ax.set_ylim(low, 1)
    ax.set_ylabel("share")
    ax.set_title(
        f"recall of the true top {result.config.select_fraction:.0%} by the scores"
        f" (mean; whisker: worst step; axis from {low:g})",
        fontsize=10,
    )
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _occupancy(result: RunResult, ax: Axes) -> None:
    hot, sealed = (_series(result, field).sum(axis=1) for field in ("hot_tokens", "sealed_tokens"))
    steps = np.arange(result.steps)
    ax.plot(steps, hot, color=COLOURS[1], label="hot pool, unsealed tail included")
    ax.plot(steps, sealed, color=COLOURS[0], label="cold store")
    ax.set_ylim(bottom=0)
    ax.set_title("tokens in each tier during the step, all streams", fontsize=10)
    ax.set_xlabel("decode step")
    ax.set_ylabel("tokens")
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _machine(steps: Sequence[MachineStep], axes: list[Axes]) -> None:
    context = [step.context_tokens for step in steps]
    same = context[0] == context[-1]
    x = [step.step for step in steps] if same else context
    for field, label, colour in (
        ("serial_ps", "one task after the other", COLOURS[1]),
        ("time_ps", "overlapped", COLOURS[0]),
        ("bound_ps", "bound: no order is faster", COLOURS[2]),
    ):
        axes[0].plot(x, [getattr(step, field) / 1e9 for step in steps], "o-", ms=3, color=colour, label=label)
    axes[0].set_ylim(bottom=0)
    axes[0].set_title("time of a decode step on the machine", fontsize=10)
    axes[0].set_xlabel("decode step" if same else "context, tokens")
    axes[0].set_ylabel("ms")
    axes[0].legend(fontsize=8, frameon=False)
    names = sorted(steps[-1].busy_ps, key=lambda name: steps[-1].busy_ps[name])
    busy = [sum(s.busy_ps.get(name, 0) for s in steps) / sum(s.time_ps for s in steps) for name in names]
    axes[1].barh(names, busy, color=COLOURS[0])
    axes[1].set_xlim(0, 1)
    axes[1].grid(axis="y", visible=False)
    axes[1].grid(axis="x", color="0.9")
    axes[1].set_title("share of the step that each resource works", fontsize=10)


def _traffic(result: RunResult, ax: Axes) -> None:
    steps = np.arange(result.steps)
    outward = _series(result, "to_device_bytes").sum(axis=1) / 1e3
    inward = _series(result, "from_device_bytes").sum(axis=1) / 1e3
    ax.bar(steps, inward, 0.85, color=COLOURS[0], label="from the device: scores, rows")
    ax.bar(steps, outward, 0.85, bottom=inward, color=COLOURS[1], label="to it: queries, sealed blocks")
    ax.set_title("payload per decode step, all streams", fontsize=10)
    ax.set_xlabel("decode step")
    ax.set_ylabel("KB")
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _time(result: RunResult, ax: Axes) -> None:
    left = np.zeros(len(result.streams))
    y = np.arange(len(result.streams))
    design = result.config.design_config
    scorer_ps = _series(result, "device_cycles") * PS_PER_SECOND / design.clock_hz
    parts = {
        f"kernel's cycles at {design.clock_hz / 1e6:g} MHz": scorer_ps,
        "rest of scoring: link, registers, interrupt": _series(result, "score_time_ps") - scorer_ps,
    }
    parts |= {label: _series(result, field) for field, label in TIME_PARTS.items()}
    for index, (label, series) in enumerate(parts.items()):
        mean_us = series.mean(axis=0) / 1e6
        ax.barh(y, mean_us, 0.7, left=left, color=_colour(index), label=label)
        left += mean_us
    ax.set_yticks(y, result.streams)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color="0.9")
    ax.set_title("simulated time of device and link per decode step, serial sum of its parts", fontsize=10)
    ax.set_xlabel("µs")
    ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
