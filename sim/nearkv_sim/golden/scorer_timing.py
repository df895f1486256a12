"""Cycle counts of the scorer for a ready sink, equal to the RTL's if its sources have full rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.scorer_pipeline import (
    DROP_RANKS,
    OUTPUT_QUEUE_RANKS,
    QUERY_RANKS,
    ROW_RANKS,
    pipeline_ranks,
)


@dataclass(frozen=True)
class JobTiming:
    """Cycles of one job, counted from 0 in the first cycle in which every source is valid.

    Attributes:
        cycles: up to and including the last score's transfer.
        first_lane_beat: cycle of the job's first lane beat.
        last_lane_beat: cycle of its last.
        lane_beats: cycles in which the lanes take a beat.

    """

    cycles: int
    first_lane_beat: int
    last_lane_beat: int
    lane_beats: int


class FullRate:
    """Sources of the scorer's streams, asked block by block; here each has a beat in every cycle.

    All answers are cycles. Slower sources derive from this class.

    Args:
        design: the scorer's.
        head_dims: of the blocks.

    """

    def __init__(self, design: DesignConfig, head_dims: Sequence[int]) -> None:
        self._query_beats = [design.query_beats(head_dim) for head_dim in head_dims]

    def command(self, _block: int, /) -> int:
        """From when on the block's command is there; asked first of a block."""
        return 0

    def last_query(self, block: int, command: int, /) -> int:
        """When the block's last query beat is taken, if its command was taken in cycle `command`."""
        return command + self._query_beats[block]

    def row(self, _row: int, /) -> int:
        """From when on that plane beat of the block is there."""
        return 0

    def taken(self, first: int, last: int, /) -> None:
        """Hear when the block's first and last plane beat were taken; nothing follows from it here."""


def job_timing(
    design: DesignConfig,
    head_dims: Sequence[int],
    key_formats: Sequence[KeyFormat],
    feed: FullRate | None = None,
) -> JobTiming:
    """Timing of a job of key blocks, one head_dim and format each.

    The recurrence follows the three actors of the scorer: the query loader takes a block's command when
    its bank is free; the bus fills the high plane and then the low queue, as far as the queue has room;
    the lanes start when queries and the first row are there, and then never pause within a block.

    Args:
        design: the scorer's.
        head_dims, key_formats: of the blocks.
        feed: the sources; None for full rate. Within a block rows must come as fast as the lanes use them.

    Raises:
        ValueError: no block, lists of different length, a head_dim the design does not score.

    """
    if not head_dims or len(head_dims) != len(key_formats):
        raise ValueError(
            f"job has {len(head_dims)} head_dims and {len(key_formats)} key_formats; allowed: at least one"
            " block, as many of both"
        )
    feed = feed or FullRate(design, head_dims)
    latency = pipeline_ranks(design)
    subs = design.lane_beats_per_plane_beat
    queue = design.low_queue_rows
    released = [-1, -1]  # cycle in which each of the two banks was last released
    lane_start: list[tuple[int, int]] = []  # per INT8 block: index of its first low row, first lane beat
    next_command, bus_free, lanes_free = 0, 0, 0
    low_rows, lane_beats, first_beat = 0, 0, -1

    def dropped(row: int) -> int:
        """Cycle in which a row of the low queue has left it; before time 0 for the first `queue` rows."""
        for first_row, start in reversed(lane_start):
            if first_row <= row:
                return start + (row - first_row + 1) * subs + DROP_RANKS
        return 0

    for block, (head_dim, key_format) in enumerate(zip(head_dims, key_formats, strict=True)):
        rows = design.plane_beats(head_dim)
        command = max(next_command, released[block % 2] + 1, feed.command(block))
        queries_ready = feed.last_query(block, command) + 1
        next_command = queries_ready
        bus_start = max(command + 1, bus_free, feed.row(0))
        if key_format is KeyFormat.INT8:
            first_low = max(bus_start + rows, dropped(low_rows - queue), feed.row(rows))
            start = max(lanes_free, queries_ready + QUERY_RANKS, first_low + ROW_RANKS)
            lane_start.append((low_rows, start))
            low_rows += rows
            last_bus = max(first_low + rows - 1, dropped(low_rows - 1 - queue), feed.row(2 * rows - 1))
        else:
            start = max(lanes_free, queries_ready + QUERY_RANKS, bus_start + ROW_RANKS)
            last_bus = max(bus_start + rows - 1, feed.row(rows - 1))
        feed.taken(bus_start, last_bus)
        bus_free = last_bus + 1
        beats = design.lane_beats_per_block(head_dim)
        lanes_free = start + beats
        lane_beats += beats
        first_beat = start if first_beat < 0 else first_beat
        released[block % 2] = lanes_free - 1 + latency
    last_beat = lanes_free - 1
    return JobTiming(last_beat + latency + OUTPUT_QUEUE_RANKS + 1, first_beat, last_beat, lane_beats)


def job_cycles(design: DesignConfig, head_dims: Sequence[int], key_formats: Sequence[KeyFormat]) -> int:
    """Cycles of a job up to and including its last score's transfer; see `job_timing`."""
    return job_timing(design, head_dims, key_formats).cycles
