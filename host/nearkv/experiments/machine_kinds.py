"""How a machine times one decode step of a run: by the prefetch pipeline, or in PIM memories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nearkv.experiments.config import ExperimentConfig, Selection
from nearkv.experiments.records import StepRecord
from nearkv.experiments.selection import SelectionUnit
from nearkv.machine import Machine, TierKind
from nearkv.pam.placement import TIERS, filled
from nearkv.pam.step import PamLoad, pam_step
from nearkv.pipeline.comparison import cache_bytes
from nearkv.pipeline.decode import run_decode
from nearkv.pipeline.roles import find_roles
from nearkv.pipeline.schedule import Schedule
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.work import ModelGeometry, StepLoad

CODE_BITS = {"int8": 8, "int4": 4}


@dataclass(frozen=True)
class TimedStep:
    """A step on the machine.

    Attributes:
        context_tokens: of every sequence.
        schedule: of the one step.
        written_bytes: to the drive behind the hot pool, 0 where there is none.

    """

    context_tokens: int
    schedule: Schedule
    written_bytes: int = 0


class StepKind(ABC):
    """Times steps of one run on one machine; the mean of the trace's streams stands for every head.

    Attributes:
        gpu: its processor.
        drive: tier that sealed blocks are written to, "" without one.

    """

    def __init__(self, machine: Machine, model: ModelGeometry, config: ExperimentConfig) -> None:
        self.machine, self.model, self.config = machine, model, config
        self.gpu, self.drive = "", ""

    @abstractmethod
    def time(self, records: Sequence[StepRecord]) -> TimedStep:
        """Time the step whose records these are, one per stream; ValueError where the cache has no place."""

    def _context_tokens(self, records: Sequence[StepRecord]) -> int:
        return self.config.context_tokens or records[0].position + 1


class PipelineSteps(StepKind):
    """A GPU, host memory, a scoring card and a drive: `nearkv.pipeline`, nothing scored ahead."""

    def __init__(self, machine: Machine, model: ModelGeometry, config: ExperimentConfig) -> None:
        super().__init__(machine, model, config)
        roles = find_roles(machine)
        self.gpu, self.drive = roles.gpu, roles.cold_tier

    def time(self, records: Sequence[StepRecord]) -> TimedStep:
        """Score, fetch, attend, move."""
        config, context = self.config, self._context_tokens(records)
        kv_bytes = cache_bytes(self.model, context, config.batch)
        share = shares_of(records)
        hot, scores = share("hot_tokens"), config.selection is Selection.SCORE_ALL
        settings = PipelineSettings(
            method=Method.NEAR_DATA if scores else Method.RECENCY,
            # Hot-only attends what is hot, and rounding must not ask for a byte more.
            select_fraction=share("attended_tokens") if scores else max(hot * (1 - 1e-9), 1e-9),
            code_bits=CODE_BITS[config.format.value],
            link_cap=config.link_cap,
            lookahead_layers=0,
            hot_hit_fraction=mean([record.hit_rate for record in records]) if scores else None,
            joint_selection=True,
            per_head_selection=config.selection_unit is not SelectionUnit.LAYER,
        )
        load = StepLoad(
            context_tokens=context,
            batch=config.batch,
            hot_bytes=int(hot * kv_bytes),
            promoted_bytes=int(share("promotion_read_tokens") * kv_bytes),
        )
        run = run_decode(self.machine, self.model, load, settings)
        return TimedStep(context, run.schedule, run.work.sealed * run.layers)


class PimSteps(StepKind):
    """A GPU and three PIM tiers: `nearkv.pam`. Rows are attended where they lie.

    Hot tokens lie in the fastest tier, the others in the next ones, fastest first; what is selected of them
    is spread over them evenly. A promotion and the demotion that makes room for it cross between the first
    two tiers.
    """

    def __init__(self, machine: Machine, model: ModelGeometry, config: ExperimentConfig) -> None:
        super().__init__(machine, model, config)
        if config.link_cap != 1:
            raise ValueError(
                f"link_cap is {config.link_cap} on {machine.name}; allowed: 1, PIM tiers attend in place"
            )
        tiers = machine.description.tiers
        home = next((tier.name for tier in tiers if tier.kind is TierKind.GPU_MEMORY), "")
        self.gpu = next((unit.name for unit in machine.description.processors if unit.tier == home), "")
        self._capacity_bytes = [t.capacity_bytes for t in tiers if t.kind is TierKind.PIM_MEMORY]

    def time(self, records: Sequence[StepRecord]) -> TimedStep:
        """Attend in all tiers side by side, move beside it."""
        context, batch, share = self._context_tokens(records), self.config.batch, shares_of(records)
        token_bytes = cache_bytes(self.model, 1, batch)
        room = [nbytes // token_bytes for nbytes in self._capacity_bytes]
        cold_tokens = context - min(round(share("hot_tokens") * context), room[0])
        held = filled(room[1:], cold_tokens, "tokens of each sequence")
        attended = max(1, round(share("attended_tokens") * context))
        hits = round(mean([record.hit_rate for record in records]) * attended)
        if self.config.selection is Selection.HOT_ONLY:
            hits = attended
        cold = sum(held)
        misses = [(attended - hits) * tokens // cold if cold else 0 for tokens in held]
        moved = round(share("promoted_tokens") * context)
        load = PamLoad(
            batch=batch,
            attended_tokens=[attended - sum(misses), *misses],
            moved_tokens={(1, 0): moved, (0, 1): moved} if moved else {},
        )
        return TimedStep(context, pam_step(self.machine, self.model, load).schedule)


def step_kind(machine: Machine, model: ModelGeometry, config: ExperimentConfig) -> StepKind:
    """What the machine's tiers make of it; ValueError for a machine that lacks what either needs."""
    tiers = [tier.kind for tier in machine.description.tiers]
    kind = PimSteps if tiers.count(TierKind.PIM_MEMORY) == TIERS else PipelineSteps
    return kind(machine, model, config)


def shares_of(records: Sequence[StepRecord]) -> Callable[[str], float]:
    """A field's mean over the streams, as a share of the context."""
    tokens = records[0].position + 1
    return lambda field: mean([getattr(record, field) for record in records]) / tokens


def mean(values: Sequence[float]) -> float:
    """Of the streams' values."""
    return float(np.mean(values))
