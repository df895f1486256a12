"""Compares runs of one experiment on two transports: everything but time has to be equal."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.experiments.records import TIME_SUFFIX, RunResult

# Their cycles are those of a whole kernel with its memory: measured time, and not the scorer's formula.
MEASURED_CYCLES = frozenset({"pcie", "pyxrt"})
CYCLES = "device_cycles"


@dataclass(frozen=True)
class Comparison:
    """Outcome of comparing two runs.

    Attributes:
        transports: their names.
        steps: decode steps compared.
        fields: fields found equal in every step and stream, or compared until the first difference.
        cycles: total device cycles of each.
        time_ps: total simulated time of each, not compared.
        difference: the first difference in words; None if there is none.

    """

    transports: tuple[str, str]
    steps: int
    fields: tuple[str, ...]
    cycles: tuple[int, int]
    time_ps: tuple[int, int]
    difference: str | None

    @property
    def identical(self) -> bool:
        """Whether no field differs."""
        return self.difference is None

    def lines(self) -> list[str]:
        """The outcome for a terminal."""
        first, second = self.transports
        if self.difference is not None:
            return [f"{first} and {second} differ: {self.difference}"]
        return [
            f"{first} and {second}: {len(self.fields)} fields identical over {self.steps} steps,"
            f" {self._cycles_text()};"
            f" time {self.time_ps[0] / 1e6:.1f} and {self.time_ps[1] / 1e6:.1f} us in total"
        ]

    def _cycles_text(self) -> str:
        if CYCLES in self.fields:
            return f"{self.cycles[0]} device cycles each"
        return f"{self.cycles[0]} and {self.cycles[1]} device cycles"


def compare(first: RunResult, second: RunResult) -> Comparison:
    """Compare two runs of the same experiment, step by step, over the steps that both finished.

    Every field whose name does not end in `_ps` has to be equal: quality, selections, outputs and scores
    (by CRC), traffic, and device cycles unless one of the transports measures them (MEASURED_CYCLES).
    """
    names = first.config.transport, second.config.transport
    pairs = list(zip(first.records, second.records, strict=False))
    fields = [name for name in pairs[0][0].flat() if not name.endswith(TIME_SUFFIX)]
    if MEASURED_CYCLES.intersection(names):
        fields.remove(CYCLES)
    difference = None
    for left, right in pairs:
        one, other = left.flat(), right.flat()
        unequal = [name for name in fields if one[name] != other.get(name)]
        if unequal:
            name = unequal[0]
            difference = (
                f"{name} at step {left.step}, stream {left.stream}:"
                f" {one[name]} in {names[0]}, {other.get(name)} in {names[1]}"
            )
            break
    return Comparison(
        transports=names,
        steps=min(first.steps, second.steps),
        fields=tuple(fields),
        cycles=(_total(first, CYCLES), _total(second, CYCLES)),
        time_ps=(_total(first, "time_ps"), _total(second, "time_ps")),
        difference=difference,
    )


def _total(result: RunResult, field: str) -> int:
    return sum(getattr(record, field) for record in result.records)
