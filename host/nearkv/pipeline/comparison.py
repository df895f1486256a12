"""Figures to hold against HillInfer's headline: decode steps of several methods on one machine.

Nothing is tuned. Every method gets the same machine, model and sequences, weights included; the KV cache
fills the hot pool first and the cold tier with the rest, or is balanced at β where the method scores near the
data and β needs less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from nearkv.machine import Machine
from nearkv.pipeline.beta import hot_bytes, overlapped_ratio
from nearkv.pipeline.decode import DecodeRun, run_decode
from nearkv.pipeline.roles import find_roles
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.work import KEYS_AND_VALUES, ModelGeometry, StepLoad

# Steps of balancing; rates depend on sizes only weakly, so that the ratio settles at once.
BALANCE_ROUNDS = 3


def cache_bytes(model: ModelGeometry, context_tokens: int, batch: int) -> int:
    """Bytes of the whole KV cache."""
    token_bytes = KEYS_AND_VALUES * model.layers * model.kv_heads * model.head_dim * model.bytes_per_value
    return token_bytes * context_tokens * batch


def hot_capacity_bytes(machine: Machine, model: ModelGeometry) -> int:
    """What host memory holds beside the weights that the GPU has no room for."""
    roles, tier = find_roles(machine), machine.description.tier
    spilled = max(0, model.weight_bytes - tier(roles.gpu_tier).capacity_bytes)
    return max(0, tier(roles.hot_tier).capacity_bytes - spilled)


def balanced_run(
    machine: Machine, model: ModelGeometry, context_tokens: int, batch: int, settings: PipelineSettings
) -> DecodeRun:
    """A step at the β that its own rates ask for, as far as the hot pool has room.

    Raises:
        ValueError: as `decode_tasks`.

    """
    kv_bytes = cache_bytes(model, context_tokens, batch)
    room = hot_capacity_bytes(machine, model)
    load = StepLoad(context_tokens=context_tokens, batch=batch, hot_bytes=min(room, kv_bytes * 4 // 5))
    for _ in range(BALANCE_ROUNDS):
        run = run_decode(machine, model, load, settings)
        ratio = overlapped_ratio(run.rates(), settings.select_fraction)
        load = replace(load, hot_bytes=hot_bytes(kv_bytes, ratio, room))
    return run_decode(machine, model, load, settings)


def compare_methods(
    machine: Machine,
    model: ModelGeometry,
    context_tokens: int,
    batch: int,
    settings: PipelineSettings,
    methods: Iterable[Method] = tuple(Method),
) -> dict[Method, DecodeRun]:
    """One step of every method on the same machine, with a selection without locality and none of it late.

    Raises:
        ValueError: as `decode_tasks`.

    """
    filled = min(hot_capacity_bytes(machine, model), cache_bytes(model, context_tokens, batch))
    found: dict[Method, DecodeRun] = {}
    for method in methods:
        chosen = replace(settings, method=method, late_fraction=0.0, hot_hit_fraction=None)
        if method is Method.NEAR_DATA:
            found[method] = balanced_run(machine, model, context_tokens, batch, chosen)
        else:
            load = StepLoad(context_tokens=context_tokens, batch=batch, hot_bytes=filled)
            found[method] = run_decode(machine, model, load, chosen)
    return found


@dataclass(frozen=True)
class MigrationEffect:
    """A step with equal-volume migration between the pools beside one without.

    Attributes:
        without, with_migration: the two runs.

    """

    without: DecodeRun
    with_migration: DecodeRun

    @property
    def rows_saved(self) -> float:
        """Share of the rows fetched from the cold tier that migration saves, its own moves left out."""
        before, after = (
            run.work.cold_fetched + run.work.late_fetched for run in (self.without, self.with_migration)
        )
        return 1 - after / before

    @property
    def traffic_saved(self) -> float:
        """Share of the cold tier's traffic that migration saves; negative where it adds some."""
        return 1 - self.with_migration.cold_traffic_bytes / self.without.cold_traffic_bytes

    @property
    def time_saved(self) -> float:
        """Share of the step's time that migration saves."""
        return 1 - self.with_migration.step_ps / self.without.step_ps


def migration_effect(
    machine: Machine,
    model: ModelGeometry,
    load: StepLoad,
    settings: PipelineSettings,
    *,
    hit_without: float,
    hit_with: float,
    swapped_fraction: float,
) -> MigrationEffect:
    """Both runs from measured hit rates.

    Args:
        machine: the machine.
        model: its shape.
        load: without promotions and demotions.
        settings: of the pipeline; its hit fraction is replaced.
        hit_without, hit_with: share of the selected rows found hot, as a policy's run on a trace measured it.
        swapped_fraction: share of the KV cache that is promoted, and again demoted, per step.

    Raises:
        ValueError: a share outside 0 to 1, or as `decode_tasks`.

    """
    if not 0 <= swapped_fraction <= 1:
        raise ValueError(f"swapped_fraction is {swapped_fraction!r}; allowed: 0 to 1")
    swapped = int(cache_bytes(model, load.context_tokens, load.batch) * swapped_fraction)
    moving = replace(load, promoted_bytes=swapped, demoted_bytes=swapped)
    return MigrationEffect(
        run_decode(machine, model, load, replace(settings, hot_hit_fraction=hit_without)),
        run_decode(machine, model, moving, replace(settings, hot_hit_fraction=hit_with)),
    )
