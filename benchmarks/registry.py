"""The benches by name. A bench is a function without arguments that measures and returns a `Table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

# module:function, imported when it is asked for
BENCHES = {
    "attention": "benchmarks.attention:measure",
    "cosim": "benchmarks.cosim:measure",
    "golden": "benchmarks.golden:measure",
    "kvcache": "benchmarks.kvcache:measure",
    "links": "benchmarks.links:measure",
    "policy_speed": "benchmarks.policy_speed:measure",
}


@dataclass(frozen=True)
class Table:
    """What a bench measured.

    Args:
        title: what was measured, with the conditions.
        rows: one dict per row, the same keys in every row; keys carry units.

    """

    title: str
    rows: list[dict[str, Any]]

    def text(self) -> str:
        """The table in aligned columns, numbers to the right."""
        header = list(self.rows[0])
        cells = [header, *([_cell(row[key]) for key in header] for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
        is_number = [isinstance(value, int | float) for value in self.rows[0].values()]
        lines = [
            "  ".join(
                cell.rjust(width) if number else cell.ljust(width)
                for cell, width, number in zip(row, widths, is_number, strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join([self.title, "", *lines])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def get_bench(name: str) -> Callable[[], Table]:
    """Look a bench up by name; ValueError lists the known ones."""
    if name not in BENCHES:
        raise ValueError(f"bench is {name!r}; allowed: {', '.join(BENCHES)}")
    module, function = BENCHES[name].split(":")
    bench: Callable[[], Table] = getattr(import_module(module), function)
    return bench
