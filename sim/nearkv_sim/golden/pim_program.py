"""Programs of a processing unit: commands and rows for the RTL, results expected from the model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.attention import LOGIT, Merge, Operation, RowFormat, logit_scale
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_sim.golden.partial_beats import concatenate_fields, maximum_fields, partial_fields
from nearkv_sim.golden.pim_unit import ProcessingUnitModel, row_fields
from nearkv_sim.golden.stored_rows import Int8Rows, Rows

Fields = dict[str, NDArray[Any]]

_UNUSED = {
    "slot": 0,
    "first": 0,
    "row_format": 0,
    "tokens": 0,
    "scale": 0,
    "merge": 0,
    "maximum": 0,
    "value_exponent": 0,
}


class UnitProgram:
    """Records commands while a model executes them.

    Args:
        design: of the unit.

    Attributes:
        model: the model, to be asked for anything else.

    """

    def __init__(self, design: PimDesign) -> None:
        self.design = design
        self.model = ProcessingUnitModel(design)
        self._commands: list[dict[str, int]] = []
        self._rows: list[Fields] = []
        self._results: list[Fields] = []

    def write_query(self, query: NDArray[np.float16]) -> None:
        """WRITE_QUERY with the scale of the design's head dimension."""
        self.model.write_query(query)
        self._add(Operation.WRITE_QUERY, query[None], scale=logit_scale(self.design.head_dim))

    def score(self, slot: int, keys: Rows, *, first: bool) -> None:
        """SCORE over key rows."""
        self.model.score(slot, keys, first=first)
        self._add(Operation.SCORE, keys, slot=slot, first=int(first), **_block(keys))

    def read_maximum(self, slot: int) -> int:
        """READ_MAXIMUM; returns what the model answers."""
        maximum = self.model.maximum(slot)
        self._add(Operation.READ_MAXIMUM, None, slot=slot)
        logit = np.array([maximum << LOGIT.fraction_bits], np.int64)
        self._results.append(maximum_fields(logit, 0, self.design.partial_lanes))
        return maximum

    def accumulate(
        self, slot: int, values: Rows, *, first: bool, exponent: int, merge: Merge, maximum: int | None = None
    ) -> None:
        """ACCUMULATE over value rows."""
        self.model.accumulate(slot, values, first=first, exponent=exponent, merge=merge, maximum=maximum)
        self._add(
            Operation.ACCUMULATE,
            values,
            slot=slot,
            first=int(first),
            merge=int(merge),
            maximum=maximum or 0,
            value_exponent=exponent,
            **_block(values),
        )

    def read_result(self, merge: Merge) -> None:
        """READ_RESULT for a reduction of that kind."""
        partial, exponent = self.model.result()
        self._add(Operation.READ_RESULT, None, merge=int(merge))
        self._results.append(partial_fields(partial, exponent, merge, self.design.partial_lanes))

    def take(self) -> tuple[Fields, Fields, Fields]:
        """Fields of commands, row beats and expected result beats so far; the program starts anew."""
        commands = {
            name: np.array([command[name] for command in self._commands]) for name in self._commands[0]
        }
        empty = row_fields(self.design, np.zeros((0, self.design.head_dim), np.float16))
        results = maximum_fields(np.zeros(0, np.int64), 0, self.design.partial_lanes)
        taken = (
            commands,
            concatenate_fields([empty, *self._rows]),
            concatenate_fields([results, *self._results]),
        )
        self._commands, self._rows, self._results = [], [], []
        return taken

    def _add(self, operation: Operation, rows: Rows | None, **fields: int) -> None:
        self._commands.append({"operation": int(operation), **_UNUSED, **fields})
        if rows is not None:
            self._rows.append(row_fields(self.design, rows))


def _block(rows: Rows) -> dict[str, int]:
    int8 = isinstance(rows, Int8Rows)
    tokens = len(rows.codes) if isinstance(rows, Int8Rows) else len(rows)
    return {"tokens": tokens, "row_format": int(RowFormat.INT8 if int8 else RowFormat.FP16)}
