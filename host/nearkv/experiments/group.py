"""Streams that select together, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nearkv.experiments.config import ExperimentConfig
from nearkv.experiments.decode import StreamRun
from nearkv.experiments.records import StepRecord
from nearkv.experiments.selection import SelectionUnit, choose
from nearkv.kvcache.budget import share_ceil
from nearkv.policy.future import FutureAccesses


class SelectionGroup:
    """The streams of a layer where a layer selects, otherwise one stream.

    Args:
        config: of the run.
        streams: of one layer.
        trace_steps: steps of the trace, for policies that know the future.

    """

    def __init__(self, config: ExperimentConfig, streams: Sequence[StreamRun], trace_steps: int) -> None:
        self._config = config
        self.streams = streams
        if any(stream.needs_future for stream in streams):
            self._foretell(trace_steps)

    def step(self, step: int) -> list[StepRecord]:
        """Run one decode step of every stream: all score, then all select, then each attends."""
        started = [stream.begin(step) for stream in self.streams]
        count = share_ceil(self._config.select_fraction, started[0].tokens)
        chosen = choose([one.merit for one in started], count, self._config.selection_unit)
        return [
            stream.finish(one, mask) for stream, one, mask in zip(self.streams, started, chosen, strict=True)
        ]

    def _foretell(self, trace_steps: int) -> None:
        """Hand over the accesses of every step of the trace as exact attention selects them."""
        accesses: list[list[np.ndarray]] = [[] for _ in self.streams]
        for step in range(trace_steps):
            weights = [stream.exact_weights(step) for stream in self.streams]
            count = share_ceil(self._config.select_fraction, len(weights[0]))
            for found, mask in zip(
                accesses, choose(weights, count, self._config.selection_unit), strict=True
            ):
                found.append(np.flatnonzero(mask.any(axis=1)))
        for stream, found in zip(self.streams, accesses, strict=True):
            stream.future = FutureAccesses(found, stream.max_trace_tokens)


def selection_groups(
    config: ExperimentConfig, streams: Sequence[StreamRun], trace_steps: int
) -> Iterator[SelectionGroup]:
    """Group streams by who selects together, in the order of each group's first stream."""
    if config.selection_unit is not SelectionUnit.LAYER:
        for stream in streams:
            yield SelectionGroup(config, [stream], trace_steps)
        return
    layers: dict[int, list[StreamRun]] = {}
    for stream in streams:
        layers.setdefault(stream.layer, []).append(stream)
    for members in layers.values():
        yield SelectionGroup(config, members, trace_steps)
