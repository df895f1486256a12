"""What a run's decode steps cost on a described machine: time, bytes, energy, heat, wear, and who waited.

The trace's streams stand for all heads of a model: their mean shares (hot, selected, found hot, promoted) are
scaled to the model's shape, the batch and the context. The selection is made with the layer's own query, so
that nothing is predicted and no layer is scored ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nearkv.experiments.config import ExperimentConfig
from nearkv.experiments.machine_kinds import TimedStep, mean, step_kind
from nearkv.experiments.records import StepRecord
from nearkv.machine import Timing, open_machine
from nearkv.machine_record import RecordedMachine
from nearkv.models import open_model
from nearkv.pipeline.schedule import Schedule
from nearkv.timeline import Sample, Span

TIMELINE_STEPS = 4  # of those that were timed: a step of 32 layers has about a thousand spans
SEALED_WRITE_BYTES = 16384  # a block's planes, or its rows, go out in pages of at least this


@dataclass(frozen=True)
class MachineStep:
    """One decode step on the machine.

    Attributes:
        step, context_tokens: of the run, and as scaled.
        time_ps: with everything that may overlap overlapped.
        serial_ps: one task after the other.
        bound_ps: no order of the same tasks is faster.
        busy_ps: per resource; a link has one for each direction.
        gpu_stalls_ps: how long the GPU waited, by what it waited for.
        link_bytes: carried by each link, both directions.
        energy_j: by component.
        celsius: of every card, after the step.
        wear: share of its rated life that a drive has used so far, by tier.

    """

    step: int
    context_tokens: int
    time_ps: int
    serial_ps: int
    bound_ps: int
    busy_ps: Mapping[str, int]
    gpu_stalls_ps: Mapping[str, int]
    link_bytes: Mapping[str, int]
    energy_j: Mapping[str, float]
    celsius: Mapping[str, float]
    wear: Mapping[str, float]

    @property
    def busiest(self) -> str:
        """Resource with the most to do."""
        return max(self.busy_ps, key=lambda name: self.busy_ps[name])


class MachineReplay:
    """Times every `machine_every`-th step of a run; the others are taken to be like it.

    Args:
        config: of the run, with a machine.

    Attributes:
        steps: those timed so far.
        spans, samples: the timeline of the first TIMELINE_STEPS of them, and counters of all.

    Raises ValueError for an unknown machine or model, or a machine that lacks what the run needs.

    """

    def __init__(self, config: ExperimentConfig) -> None:
        if config.machine is None or config.model is None:
            raise ValueError("machine is null; allowed: a machine and a model")
        self._config = config
        machine = open_machine(config.machine)
        if not isinstance(machine, RecordedMachine):
            raise ValueError(f"machine {machine.name} keeps no record; allowed: one of nearkv machine")
        self.machine = machine
        self.model = open_model(config.model)
        self.kind = step_kind(machine, self.model, config)
        self._record = machine.start_record()
        self._links = {link.wires for link in machine.description.links}
        self._now_ps = 0
        self._energy_j: Mapping[str, float] = {}
        self.steps: list[MachineStep] = []
        self.spans: list[Span] = []
        self.samples: list[Sample] = []

    def observe(self, records: Sequence[StepRecord]) -> MachineStep | None:
        """Time a step from its records, one per stream; None where it is not one of those timed."""
        if records[0].step % self._config.machine_every:
            return None
        timed = self.kind.time(records)
        if len(self.steps) < TIMELINE_STEPS:
            self._draw(timed.schedule, records[0].step)
        self.samples += [
            Sample("hot tokens per stream", self._now_ps, mean([r.hot_tokens for r in records])),
            Sample("fetched tokens per stream", self._now_ps, mean([r.fetched_tokens for r in records])),
        ]
        timings = [self._undirected(task.timing) for task in timed.schedule.tasks]
        busy: Counter[str] = Counter()
        for timing in timings:
            busy.update(timing.busy_ps)
        interval = Timing(timed.schedule.time_ps, 0, dict(busy))
        self._record.spend(interval, timings)
        if timed.written_bytes:
            written = timed.written_bytes * self._config.machine_every
            self._record.write(self.kind.drive, written, SEALED_WRITE_BYTES, random=False)
        step = self._step(timed, records[0].step, timings)
        self._now_ps += timed.schedule.time_ps
        self.steps.append(step)
        return step

    @property
    def life_years(self) -> dict[str, float]:
        """Years until a drive's rated life is used at the rate of the steps so far, by tier written to."""
        years = self._now_ps * self._config.machine_every / 1e12 / (86_400 * 365)
        return {tier: years / used for tier, used in self._record.wear.items() if used}

    @property
    def write_amplification(self) -> Mapping[str, float]:
        """Bytes to the NAND per byte from the host, by tier that is written."""
        return self._record.write_amplification

    def _undirected(self, timing: Timing) -> Timing:
        """The same with a link's two directions under its name."""
        busy: Counter[str] = Counter()
        for resource, busy_ps in timing.busy_ps.items():
            busy[self._wires(resource) or resource] += busy_ps
        return replace(timing, busy_ps=dict(busy))

    def _wires(self, resource: str) -> str:
        """Link of a resource, "" for a processor or memory."""
        name = resource.removesuffix(" in").removesuffix(" out")
        return name if name in self._links else ""

    def _step(self, timed: TimedStep, step: int, timings: Sequence[Timing]) -> MachineStep:
        link_bytes: Counter[str] = Counter()
        for timing in timings:
            link_bytes.update({name: timing.nbytes for name in timing.busy_ps if name in self._links})
        total = self._record.energy_j
        energy = {name: joules - self._energy_j.get(name, 0.0) for name, joules in total.items()}
        self._energy_j = dict(total)
        return MachineStep(
            step=step,
            context_tokens=timed.context_tokens,
            time_ps=timed.schedule.time_ps,
            serial_ps=timed.schedule.serial_ps,
            bound_ps=timed.schedule.bound_ps,
            busy_ps=timed.schedule.busy_ps,
            gpu_stalls_ps=timed.schedule.stalls_ps(self.kind.gpu),
            link_bytes=dict(link_bytes),
            energy_j=energy,
            celsius=dict(self._record.celsius),
            wear=dict(self._record.wear),
        )

    def _draw(self, schedule: Schedule, step: int) -> None:
        """Append the step's spans to the timeline."""
        base = len(self.spans)
        ends: dict[str, int] = {}  # label of a task: its first span
        placed = sorted(schedule.spans, key=lambda span: (span.start_ps, span.end_ps, span.resource))
        for index, span in enumerate(placed):
            ends.setdefault(f"{span.step}.{span.layer}.{span.name}", base + index)
        for span in placed:
            self.spans.append(
                Span(
                    span.resource,
                    f"{span.name} L{span.layer}",
                    self._now_ps + span.start_ps,
                    self._now_ps + span.end_ps,
                    (ends[span.waits_for],) if span.waits_for else (),
                    {"decode step": step},
                )
            )
