"""Who is told of a run's steps: a described machine, and a monitor."""

from __future__ import annotations

from collections.abc import Sequence

from nearkv.experiments.machine_steps import MachineReplay, MachineStep
from nearkv.experiments.records import StepRecord
from nearkv.integrations.prometheus import MetricsEndpoint, RunSample


class RunObserver:
    """Passes finished steps on.

    Args:
        replay: times steps on a machine; None without one.
        endpoint: shows how the run stands; None without one.

    """

    def __init__(self, replay: MachineReplay | None, endpoint: MetricsEndpoint | None) -> None:
        self._replay, self._endpoint = replay, endpoint

    def observe(self, records: Sequence[StepRecord]) -> None:
        """Take one decode step's records, one per stream."""
        timed = None if self._replay is None else self._replay.observe(records)
        if self._endpoint is not None:
            self._endpoint.observe(_sample(records, timed, self._replay))


def _sample(
    records: Sequence[StepRecord], timed: MachineStep | None, replay: MachineReplay | None
) -> RunSample:
    hits = round(sum(record.hit_rate * record.selected_tokens for record in records))
    tokens = sum(record.position + 1 for record in records)
    moved = {"device": sum(record.to_device_bytes + record.from_device_bytes for record in records)}
    occupancy = {
        "hot": sum(record.hot_tokens for record in records) / tokens,
        "cold": sum(record.sealed_tokens for record in records) / tokens,
    }
    gpu_load = None
    if timed is not None and replay is not None:
        moved |= timed.link_bytes
        gpu_load = timed.busy_ps.get(replay.kind.gpu, 0) / timed.time_ps
    return RunSample(
        hits=hits,
        misses=sum(record.selected_tokens for record in records) - hits,
        moved_bytes=moved,
        promoted_tokens=sum(record.promoted_tokens for record in records),
        demoted_tokens=sum(record.demoted_tokens for record in records),
        time_ps=sum(record.time_ps for record in records),
        tier_occupancy=occupancy,
        gpu_load=gpu_load,
        ssd_wear={} if timed is None else timed.wear,
        fpga_celsius={} if timed is None else timed.celsius,
    )
