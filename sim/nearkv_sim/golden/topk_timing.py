"""Cycle counts of the top-k unit for a sink that is always ready, equal to the RTL's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.golden.topk import TopKResult

# Register ranks, as in nearkv_hdl.attention; tests compare the sums with the RTL's properties.
_DIGIT_RANKS = 4  # beat or row address to digit
_COUNT_RANKS = 4  # digit to a histogram row that shows it
_SCAN_RANKS = 5  # histogram memory (two), search, column, result; beside those of the two kinds of sums
_DECIDE_CYCLES = 3  # scan result to the next walk
_ROW_RANKS = 4  # walk start, score memory, difference
_EMIT_RANKS = 5  # pick, token memory, sum, output register


@dataclass(frozen=True)
class TopKTiming:
    """Cycles of the parts of a job.

    Args:
        config: lanes and histogram shape.

    """

    config: TopKConfig

    @property
    def pass_overhead(self) -> int:
        """Cycles of a pass beside one per row: counting, scan, decision."""
        sum_levels = (self.config.lanes.bit_length() - 1) + (self.config.scan_columns.bit_length() - 1)
        scan = self.config.scan_rows + _SCAN_RANKS + sum_levels
        return _DIGIT_RANKS + _COUNT_RANKS - 1 + scan + _DECIDE_CYCLES

    @property
    def latency(self) -> int:
        """Cycles from the last beat to the first item, without a pass and with an item in row 0."""
        return self.pass_overhead + _ROW_RANKS + _EMIT_RANKS

    @property
    def empty_latency(self) -> int:
        """Cycles from the last beat to the only beat of a frame without items."""
        return self.pass_overhead + _EMIT_RANKS

    def cycles(self, result: TopKResult) -> int:
        """Cycles from the last beat of a frame to the last item of its selection."""
        if not result.count:
            return self.empty_latency
        emit = self.emit_cycles(result, 0) - 1
        return self.latency + emit + sum(rows + self.pass_overhead for rows in result.pass_rows)

    def emit_cycles(self, result: TopKResult, first_row: int) -> int:
        """Cycles in which the walk emits, or finds nothing to emit, from that row to the last item's."""
        items = np.bincount(result.positions // self.config.lanes)[first_row:]
        return int(np.maximum(items, 1).sum())

    def worst_case_cycles(self, scores: int, k: int) -> int:
        """Upper bound of `cycles` for any scores and window."""
        rows = -(-scores // self.config.lanes)
        return 3 * rows + min(k, scores) + self.latency + 2 * self.pass_overhead
