"""Time of a decode step of PAM on a machine with three PIM tiers.

Per layer: query projection on the GPU; queries go to every tier that holds attended tokens; the tiers attend
side by side, each as long as its busiest group; partial results come back; then the rest of the layer. With
the exact merge the tiers first send maxima and wait for the common one. Migrations run beside the whole step.

Attended rows of an SSD are read as if they lay together: a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nearkv.machine import PS_PER_S, Machine, TierKind, Timing
from nearkv.pam.placement import TIERS
from nearkv.pipeline.schedule import Schedule, schedule
from nearkv.pipeline.task import Task
from nearkv.pipeline.work import (
    KEYS_AND_VALUES,
    GpuKernel,
    ModelGeometry,
    matrix_kernel,
    output_kernel,
)
from nearkv_hdl.spec.attention import Merge

WORD_BYTES = 4
SUM_BYTES = 8  # a 48-bit integer of the exact merge, in whole words


@dataclass(frozen=True, kw_only=True)
class PamLoad:
    """Sequences of a step, all alike.

    Attributes:
        batch: sequences.
        attended_tokens: of each sequence and KV head in HBM, DDR and SSD.
        imbalance: of each tier, activations of its busiest group over the mean, from 1.
        moved_tokens: of each sequence, by (from, to) tier.

    ValueError for a batch below 1, other than three tiers, or nothing attended.

    """

    batch: int
    attended_tokens: Sequence[int]
    imbalance: Sequence[float] = (1.0, 1.0, 1.0)
    moved_tokens: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every value."""
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch!r}; allowed: from 1")
        tokens = tuple(self.attended_tokens)
        if len(tokens) != TIERS or min(tokens) < 0 or not any(tokens):
            raise ValueError(f"attended_tokens is {tokens}; allowed: three from 0, one above")
        if len(self.imbalance) != TIERS or min(self.imbalance) < 1:
            raise ValueError(f"imbalance is {tuple(self.imbalance)}; allowed: three from 1")


@dataclass(frozen=True)
class PamRun:
    """A step as it was scheduled.

    Attributes:
        batch: sequences.
        schedule: every task.
        tier_ps: what each tier's attention takes in a layer, 0 without tokens.

    """

    batch: int
    schedule: Schedule
    tier_ps: tuple[int, ...]

    @property
    def step_ps(self) -> int:
        """Time of the step."""
        return self.schedule.time_ps

    @property
    def tokens_per_s(self) -> float:
        """All sequences together."""
        return self.batch * PS_PER_S / self.step_ps


def pam_step(machine: Machine, model: ModelGeometry, load: PamLoad, merge: Merge = Merge.EXACT) -> PamRun:
    """Schedule one step.

    Raises:
        ValueError: a machine without a GPU and three PIM tiers with units, or weights beyond its GPU memory.

    """
    return _Builder(machine, model, load, merge).run()


class _Builder:
    """Tasks of one step."""

    def __init__(self, machine: Machine, model: ModelGeometry, load: PamLoad, merge: Merge) -> None:
        self.machine, self.model, self.load, self.merge = machine, model, load, merge
        tiers = machine.description.tiers
        gpus = [tier for tier in tiers if tier.kind is TierKind.GPU_MEMORY]
        self.tiers = [tier.name for tier in tiers if tier.kind is TierKind.PIM_MEMORY]
        processors = {unit.tier: unit.name for unit in machine.description.processors}
        if (
            len(self.tiers) != TIERS
            or not gpus
            or any(t not in processors for t in (gpus[0].name, *self.tiers))
        ):
            raise ValueError(
                f"machine {machine.name} lacks a GPU or PIM tier; allowed: a GPU and three PIM tiers"
            )
        if model.weight_bytes > gpus[0].capacity_bytes:
            raise ValueError(
                f"weights take {model.weight_bytes} bytes; allowed: GPU memory, {gpus[0].capacity_bytes}"
            )
        self.home, self.gpu = gpus[0].name, processors[gpus[0].name]
        self.units = [processors[tier] for tier in self.tiers]
        self.tasks: list[Task] = []

    def run(self) -> PamRun:
        model, batch, size = self.model, self.load.batch, self.model.bytes_per_value
        attending = [self._attend(tier) if self.load.attended_tokens[tier] else None for tier in range(TIERS)]
        query = self._kernel(matrix_kernel(model.qkv_parameters, batch, size))
        rest = self._kernel(matrix_kernel(model.output_parameters + model.ffn_parameters, batch, size))
        self._migrations()
        last: tuple[int, ...] = ()
        for layer in range(model.layers):
            asked = self._add("query", layer, query, last)
            arrived = []
            maxima = []
            for tier, timing in enumerate(attending):
                if timing is None:
                    continue
                sent = self._add("send_query", layer, self._down(tier, model.head_dim * size), (asked,))
                attended = self._add(f"attend_{self.tiers[tier]}", layer, timing, (sent,))
                if self.merge is Merge.EXACT:
                    maxima.append(self._add("send_maximum", layer, self._up(tier, WORD_BYTES), (attended,)))
                arrived.append((tier, attended))
            back = []
            for tier, attended in arrived:
                ready = (attended,)
                if self.merge is Merge.EXACT:
                    ready = (self._add("share_maximum", layer, self._down(tier, WORD_BYTES), tuple(maxima)),)
                back.append(self._add("return_partials", layer, self._up(tier, self._partial_bytes), ready))
            last = (self._add("rest", layer, rest, tuple(back)),)
        self._add("output", model.layers, self._kernel(output_kernel(model, batch)), last)
        processors = [unit.name for unit in self.machine.description.processors]
        tier_ps = tuple(timing.time_ps if timing else 0 for timing in attending)
        return PamRun(batch, schedule(self.tasks, processors), tier_ps)

    @property
    def _partial_bytes(self) -> int:
        """Of one query head: m, l and o, or the integer sums l and o."""
        if self.merge is Merge.EXACT:
            return SUM_BYTES * (self.model.head_dim + 1)
        return WORD_BYTES * (self.model.head_dim + 2)

    def _add(self, name: str, layer: int, timing: Timing, after: tuple[int, ...]) -> int:
        self.tasks.append(Task(name, 0, layer, timing, tuple(sorted(after))))
        return len(self.tasks) - 1

    def _kernel(self, kernel: GpuKernel) -> Timing:
        return self.machine.compute(self.gpu, kernel.flops, kernel.nbytes)

    def _attend(self, tier: int) -> Timing:
        model, batch = self.model, self.load.batch
        tokens = math.ceil(self.load.attended_tokens[tier] * self.load.imbalance[tier])
        heads, kv_heads = batch * model.query_heads, batch * model.kv_heads
        return self.machine.attend(self.units[tier], tokens, heads, kv_heads, model.head_dim)

    def _down(self, tier: int, head_bytes: int) -> Timing:
        nbytes = head_bytes * self.load.batch * self.model.query_heads
        return self.machine.transfer(self.home, self.tiers[tier], nbytes)

    def _up(self, tier: int, head_bytes: int) -> Timing:
        nbytes = head_bytes * self.load.batch * self.model.query_heads
        return self.machine.transfer(self.tiers[tier], self.home, nbytes)

    def _migrations(self) -> None:
        """Rows of all layers."""
        model = self.model
        token_bytes = KEYS_AND_VALUES * model.layers * model.kv_heads * model.head_dim * model.bytes_per_value
        for (source, target), tokens in self.load.moved_tokens.items():
            if tokens:
                nbytes = tokens * self.load.batch * token_bytes
                timing = self.machine.transfer(self.tiers[source], self.tiers[target], nbytes)
                self._add(f"migrate_{self.tiers[source]}_{self.tiers[target]}", model.layers, timing, ())
