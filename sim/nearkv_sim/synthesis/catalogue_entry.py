"""What the table of components says of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.lib import wiring

from nearkv_hdl.spec.design import Family


@dataclass(frozen=True)
class Entry:
    """One component.

    Attributes:
        build: makes the instance.
        instance: its parameters, for a reader.
        formats: of operands and result.
        golden: path of the golden twin in the repository; None where data pass through unchanged.
        tests: path of what checks it.
        proofs: path of what proves properties of it; None for nothing.
        family: that its area is counted on.
        partial_beats: of a job, where its `interval` depends on that.

    """

    build: Callable[[], wiring.Component]
    instance: str
    formats: str
    golden: str | None
    tests: str
    proofs: str | None = None
    family: Family = Family.ECP5
    partial_beats: int | None = None

    def interval(self, component: wiring.Component) -> int:
        """Cycles between two operands, or between two jobs of `partial_beats`."""
        interval = component.interval
        cycles: int = interval if self.partial_beats is None else interval(self.partial_beats)
        return cycles
