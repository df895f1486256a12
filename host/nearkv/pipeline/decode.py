"""Time of decode steps on a machine: the pipelined schedule, its bound and what it costs without overlap."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.machine import PS_PER_S, Machine
from nearkv.pipeline.beta import PoolRates
from nearkv.pipeline.schedule import Schedule, schedule
from nearkv.pipeline.settings import PipelineSettings
from nearkv.pipeline.tasks import decode_tasks, step_work
from nearkv.pipeline.work import LayerWork, ModelGeometry, StepLoad

NEVER_SLOWER_BYTES_PER_S = 1e15  # stands for a part that no work was measured on


@dataclass(frozen=True)
class DecodeRun:
    """Decode steps as they were scheduled.

    Attributes:
        load, settings: what was asked for.
        work: of one layer.
        layers, steps: how often.
        schedule: every task with start and end.

    """

    load: StepLoad
    settings: PipelineSettings
    work: LayerWork
    layers: int
    steps: int
    schedule: Schedule

    @property
    def step_ps(self) -> int:
        """Mean time of a step."""
        return -(-self.schedule.time_ps // self.steps)

    @property
    def busiest_ps(self) -> int:
        """Load of the busiest resource per step."""
        return -(-self.schedule.busy_ps[self.schedule.busiest] // self.steps)

    @property
    def bound_ps(self) -> int:
        """Below this no order of the same tasks gets, per step."""
        return -(-self.schedule.bound_ps // self.steps)

    @property
    def serial_ps(self) -> int:
        """One task after the other, per step."""
        return -(-self.schedule.serial_ps // self.steps)

    @property
    def tokens_per_s(self) -> float:
        """All sequences together."""
        return self.load.batch * PS_PER_S / self.step_ps

    @property
    def fetched_bytes(self) -> int:
        """Rows that came to the GPU from either pool, per step."""
        work = self.work
        return self.layers * (work.hot_fetched + work.cold_fetched + work.late_fetched)

    @property
    def cold_traffic_bytes(self) -> int:
        """What crossed the cold tier's links per step: rows, codes, migrations; not new tokens' rows."""
        work = self.work
        rows = work.cold_fetched + work.late_fetched + work.promoted + work.demoted + 2 * work.preempted
        return self.layers * (rows + work.streamed)

    def duration_ps(self, name: str) -> int:
        """Time of all tasks of a name."""
        return sum(task.timing.time_ps for task in self.schedule.tasks if task.name == name)

    def rates(self) -> PoolRates:
        """Measured rates in bytes of KV cache per second; a part without work counts as never the slower one.

        Codes are streamed while others are scored, so that the slower of both is the card's rate; queries and
        scores take the cold pool's link like its rows.
        """
        work, passes = self.work, self.layers * self.steps
        cold_rows = work.cold_fetched + work.late_fetched
        cold_link = ("fetch_cold", "fetch_late", "return_scores", "send_query")
        return PoolRates(
            hot_score_bytes_per_s=_rate(passes * work.hot_kv, self.duration_ps("score_hot")),
            cold_score_bytes_per_s=_rate(
                passes * work.cold_kv, max(self.duration_ps("score_cold"), self.duration_ps("stream_codes"))
            ),
            hot_link_bytes_per_s=_rate(passes * work.hot_fetched, self.duration_ps("fetch_hot")),
            cold_link_bytes_per_s=_rate(passes * cold_rows, sum(map(self.duration_ps, cold_link))),
        )


def run_decode(
    machine: Machine, model: ModelGeometry, load: StepLoad, settings: PipelineSettings, *, steps: int = 1
) -> DecodeRun:
    """Schedule `steps` decode steps; errors are those of `decode_tasks`."""
    tasks = decode_tasks(machine, model, load, settings, steps=steps)
    work = step_work(machine, model, load, settings)
    processors = [processor.name for processor in machine.description.processors]
    return DecodeRun(load, settings, work, model.layers, steps, schedule(tasks, processors))


def _rate(nbytes: int, time_ps: int) -> float:
    if not time_ps or not nbytes:
        return NEVER_SLOWER_BYTES_PER_S
    return nbytes * PS_PER_S / time_ps
