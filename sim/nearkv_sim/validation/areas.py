"""Runs the checks of every area and prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nearkv_sim.validation import compute, dram, machines, pcie, pim, ssd
from nearkv_sim.validation.check import Check, Outcome, run_check

AREAS: dict[str, Callable[[], list[Check]]] = {
    module.__name__.rpartition(".")[2]: module.checks for module in (pcie, ssd, dram, pim, compute, machines)
}


def area_checks(areas: Iterable[str]) -> list[Check]:
    """Checks of some areas, in order.

    Raises:
        ValueError: an unknown area, or a name given twice.

    """
    found: list[Check] = []
    for area in dict.fromkeys(areas):
        if area not in AREAS:
            raise ValueError(f"area is {area!r}; allowed: {', '.join(AREAS)}")
        found += AREAS[area]()
    names = [check.name for check in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"check {name} is given {names.count(name)} times; allowed: once")
    return found


def run_checks(checks: Sequence[Check], progress: Callable[[int, int], None] | None = None) -> list[Outcome]:
    """Measure every check once."""
    outcomes = []
    for done, check in enumerate(checks, start=1):
        outcomes.append(run_check(check))
        if progress is not None:
            progress(done, len(checks))
    return outcomes


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain data."""
    check = outcome.check
    return {
        "name": check.name,
        "unit": check.unit,
        "published": check.published,
        "ours": outcome.ours,
        "relative_error": outcome.relative_error,
        "accepted": [check.low, check.high],
        "held_out": check.held_out,
        "ok": outcome.ok,
        "source": check.source,
    }


def cells(outcome: Outcome) -> list[str]:
    """Verdict, name, published, ours, error, accepted range, unit, use, source."""
    check, error = outcome.check, outcome.relative_error
    return [
        "ok" if outcome.ok else "OUT",
        check.name,
        "–" if check.published is None else f"{check.published:.5g}",
        f"{outcome.ours:.5g}",
        "–" if error is None else f"{100 * error:+.1f} %",
        f"{check.low:.5g} to {check.high:.5g}",
        check.unit or "–",
        "held out" if check.held_out else "used",
        check.source,
    ]


HEADER = ["", "check", "published", "ours", "error", "accepted", "unit", "for the model", "source"]


def outcomes_table(outcomes: Sequence[Outcome]) -> str:
    """Outcomes for a terminal, and how many are out."""
    lines = [HEADER, *map(cells, outcomes)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    rows = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    out = sum(not outcome.ok for outcome in outcomes)
    return "\n".join([*rows, "", f"{len(outcomes)} checks, {out} out of tolerance"])
