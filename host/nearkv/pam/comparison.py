"""Figures to hold against PAM's headline: a step on its machine and on GPUs that offload, nothing tuned.

The load is committed beforehand by two numbers: the context, and the pressure, KV bytes over what the
baseline's GPU memory has left beside the weights. Attention over all tokens or over one of `sparsity`, as PAM
has it (8). Tokens fill the tiers fastest first; attended tokens lie in the tiers like all tokens (no
locality), which is PAM without its scheduling, or all in the fastest tiers, the most that scheduling can
reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.machine import Machine, TierKind, Timing
from nearkv.pam.placement import filled
from nearkv.pam.step import PamLoad, PamRun, pam_step
from nearkv.pipeline.schedule import Schedule, schedule
from nearkv.pipeline.task import Task
from nearkv.pipeline.work import (
    FLOPS_PER_MAC,
    KEYS_AND_VALUES,
    GpuKernel,
    ModelGeometry,
    matrix_kernel,
    output_kernel,
)
from nearkv_hdl.spec.attention import Merge

BUFFERED_LAYERS = 2


@dataclass(frozen=True)
class PamComparison:
    """One load on both machines.

    Attributes:
        batch: sequences that make the pressure.
        baseline: GPUs that fetch what their memory cannot hold, two layers ahead, and attend to all of it.
        spread: PAM, attended tokens in all tiers alike.
        scheduled: PAM, attended tokens in the fastest tiers that have room for them.

    """

    batch: int
    baseline: Schedule
    spread: PamRun
    scheduled: PamRun

    @property
    def speedup(self) -> float:
        """Of PAM with ideal scheduling over the baseline."""
        return self.baseline.time_ps / self.scheduled.step_ps

    @property
    def scheduling_gain(self) -> float:
        """Of ideal scheduling over none."""
        return self.spread.step_ps / self.scheduled.step_ps


def compare_with_offloading(
    pam: Machine,
    gpus: Machine,
    model: ModelGeometry,
    context_tokens: int,
    pressure: float,
    *,
    sparsity: int = 8,
    merge: Merge = Merge.EXACT,
) -> PamComparison:
    """Both machines at one load.

    Raises:
        ValueError: a context, pressure or sparsity that is not positive, or a cache that has no place.

    """
    if context_tokens < 1 or not pressure > 0 or sparsity < 1:
        raise ValueError(
            f"context_tokens is {context_tokens}, pressure {pressure}, sparsity {sparsity}; allowed: from 1,"
            " above 0, from 1"
        )
    token_bytes = KEYS_AND_VALUES * model.layers * model.kv_heads * model.head_dim * model.bytes_per_value
    left = _room(gpus, TierKind.GPU_MEMORY)[0][1] - model.weight_bytes
    batch = max(1, round(pressure * left / (token_bytes * context_tokens)))
    held = filled(
        [room // (token_bytes * batch) for _, room in _room(pam, TierKind.PIM_MEMORY)], context_tokens
    )
    attended = max(1, context_tokens // sparsity)
    spread = [attended * tokens // context_tokens for tokens in held]
    spread[0] += attended - sum(spread)
    return PamComparison(
        batch,
        offloading_step(gpus, model, context_tokens, batch),
        pam_step(pam, model, PamLoad(batch=batch, attended_tokens=spread), merge),
        pam_step(pam, model, PamLoad(batch=batch, attended_tokens=filled(held, attended)), merge),
    )


def offloading_step(machine: Machine, model: ModelGeometry, context_tokens: int, batch: int) -> Schedule:
    """A step of GPUs whose KV cache spills into host memory and drives.

    Raises:
        ValueError: a machine without GPU memory, or a cache that has no place.

    """
    size = model.bytes_per_value
    layer_kv = KEYS_AND_VALUES * model.kv_heads * model.head_dim * size * context_tokens * batch
    kinds = (TierKind.GPU_MEMORY, TierKind.HOST_MEMORY, TierKind.DRIVE)
    (home, gpu_room), *outer = [place for kind in kinds for place in _room(machine, kind)]
    spilled = max(0, layer_kv - (gpu_room - model.weight_bytes) // model.layers)
    shares = filled([room // model.layers for _, room in outer], spilled)
    gpu = next(unit.name for unit in machine.description.processors if unit.tier == home)

    def kernel(work: GpuKernel) -> Timing:
        return machine.compute(gpu, work.flops, work.nbytes)

    group = model.query_heads // model.kv_heads
    attend = kernel(GpuKernel(FLOPS_PER_MAC * (layer_kv // size) * group, layer_kv))
    query = kernel(matrix_kernel(model.qkv_parameters, batch, size))
    rest = kernel(matrix_kernel(model.output_parameters + model.ffn_parameters, batch, size))
    fetches = [
        (f"fetch_{name}", machine.transfer(name, home, share))
        for (name, _), share in zip(outer, shares, strict=True)
        if share
    ]
    tasks: list[Task] = []
    ends: list[int] = []
    for layer in range(model.layers):
        needed = []
        for name, timing in fetches:
            needed.append(len(tasks))
            freed = (ends[layer - BUFFERED_LAYERS],) if layer >= BUFFERED_LAYERS else ()
            tasks.append(Task(name, 0, layer, timing, freed))
        tasks.append(Task("query", 0, layer, query, (ends[-1],) if ends else ()))
        tasks.append(Task("attend", 0, layer, attend, (*needed, len(tasks) - 1)))
        tasks.append(Task("rest", 0, layer, rest, (len(tasks) - 1,)))
        ends.append(len(tasks) - 1)
    tasks.append(Task("output", 0, model.layers, kernel(output_kernel(model, batch)), (ends[-1],)))
    return schedule(tasks, [unit.name for unit in machine.description.processors])


def _room(machine: Machine, kind: TierKind) -> list[tuple[str, int]]:
    found = [(tier.name, tier.capacity_bytes) for tier in machine.description.tiers if tier.kind is kind]
    if not found and kind is not TierKind.DRIVE:
        raise ValueError(f"machine {machine.name} has no tier of kind {kind.value}")
    return found
