"""Every curve against its published points, as SVG that depends on the figures alone: no date, fixed ids."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from nearkv_sim.validation.check import Outcome

_PREFIXES = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_NUMBER = re.compile(r"([\d.]+)\s*([KMG]i?|)B?")
SIZE_INCHES = (6.4, 3.6)
COLOURS = ("#0072B2", "#D55E00")  # Okabe-Ito: distinguishable with every kind of colour vision


def curves(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[float, Outcome]]]:
    """Outcomes named area/curve/x with a number (and a byte prefix) as x, by area/curve, in order of x.

    A curve has at least two points; those of other checks are left out.
    """
    found: dict[str, list[tuple[float, Outcome]]] = {}
    for outcome in outcomes:
        curve, _, last = outcome.check.name.rpartition("/")
        match = _NUMBER.fullmatch(last)
        if curve and match and outcome.check.published is not None:
            x = float(match.group(1)) * _PREFIXES[match.group(2)]
            found.setdefault(curve, []).append((x, outcome))
    return {
        curve: sorted(points, key=lambda point: point[0])
        for curve, points in found.items()
        if len(points) > 1
    }


def figures(outcomes: Sequence[Outcome]) -> dict[str, bytes]:
    """SVG of every curve by file name: area-curve.svg."""
    return {
        f"{curve.replace('/', '-')}.svg": _svg(curve, points) for curve, points in curves(outcomes).items()
    }


def _svg(curve: str, points: Sequence[tuple[float, Outcome]]) -> bytes:
    import matplotlib as mpl  # half a second that no other command should pay
    from matplotlib.figure import Figure

    x = [point[0] for point in points]
    outcomes = [point[1] for point in points]
    published = [float(o.check.published or 0) for o in outcomes]
    ours = [o.ours for o in outcomes]
    with mpl.rc_context({"svg.hashsalt": curve, "svg.fonttype": "path"}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        ax = figure.subplots()
        ax.fill_between(
            x,
            [o.check.low for o in outcomes],
            [o.check.high for o in outcomes],
            color="0.92",
            label="accepted",
        )
        ax.plot(x, ours, color=COLOURS[0], label="ours")
        ax.plot(x, published, "o", color=COLOURS[1], label="published")
        ax.set_ylim(bottom=0)
        if x[0] > 0 and x[-1] / x[0] >= 8:
            ax.set_xscale("log", base=2)
        ax.set_xticks(x, [o.check.name.rpartition("/")[2] for o in outcomes], rotation=45)
        ax.minorticks_off()
        ax.set_title(curve, fontsize=10)
        ax.set_ylabel(outcomes[0].check.unit)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(fontsize=8, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
