"""Methods side by side, roles, and the effect of migration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv.pipeline.comparison import (
    balanced_run,
    cache_bytes,
    compare_methods,
    hot_capacity_bytes,
    migration_effect,
)
from nearkv.pipeline.recompute import recovery_times
from nearkv.pipeline.roles import find_roles
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.work import StepLoad
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.model_shapes import named_model

GB = 10**9


def test_methods_share_machine_model_and_load(rates, geometry):
    machine = rates(hot_capacity_bytes=GB)
    runs = compare_methods(machine, geometry, 20_000, 4, PipelineSettings())
    assert list(runs) == list(Method)
    for method, run in runs.items():
        assert run.settings.method is method
        assert run.layers * (run.work.hot_kv + run.work.cold_kv) == cache_bytes(geometry, 20_000, 4)
        assert run.load.hot_bytes <= GB
    # The cache is 2.6 GB: what is not selected has to cross the drive's link in every step.
    assert runs[Method.NEAR_DATA].step_ps < runs[Method.HOST_SCORING].step_ps < runs[Method.FULL].step_ps
    assert runs[Method.FULL].step_ps > 1.6 * GB / machine.drive_link * 10**12


@pytest.mark.parametrize(("batch", "least", "most"), [(2, 4.21, 9.0), (8, 2.0, 4.21)])
def test_full_offload_on_the_papers_machine_is_slower_by_about_what_the_paper_says(batch, least, most):
    """Within its 4.21–8.56× or a little above while host memory holds the cache, below where it does not."""
    runs = compare_methods(
        open_machine("hillinfer"),
        named_model("qwen_7b").config,
        36_000,
        batch,
        PipelineSettings(),
        [Method.NEAR_DATA, Method.FULL],
    )
    assert least < runs[Method.FULL].step_ps / runs[Method.NEAR_DATA].step_ps < most


def test_weights_beyond_the_gpu_take_host_memory(rates, geometry):
    assert hot_capacity_bytes(rates(), geometry) == 64 * GB
    small = rates(gpu_capacity_bytes=geometry.weight_bytes - GB // 10)
    assert hot_capacity_bytes(small, geometry) == 64 * GB - GB // 10


def test_a_balanced_run_needs_less_than_all_of_host_memory(rates, geometry):
    run = balanced_run(rates(), geometry, 20_000, 4, PipelineSettings())
    assert 0 < run.work.cold_kv < run.work.hot_kv


def test_migration_that_raises_hits_saves_traffic_and_time(rates, geometry):
    load = StepLoad(context_tokens=20_000, batch=4, hot_bytes=cache_bytes(geometry, 20_000, 4) // 5)
    settings = PipelineSettings()
    effect = migration_effect(
        rates(), geometry, load, settings, hit_without=0.2, hit_with=0.8, swapped_fraction=0.0
    )
    assert effect.rows_saved == effect.traffic_saved == pytest.approx(0.75, abs=0.001)
    assert effect.time_saved > 0.3
    useless = migration_effect(
        rates(), geometry, load, settings, hit_without=0.5, hit_with=0.5, swapped_fraction=0.01
    )
    assert useless.rows_saved == 0
    assert useless.traffic_saved < 0
    assert useless.time_saved < 0
    with pytest.raises(ValueError, match="swapped_fraction is 2; allowed: 0 to 1"):
        migration_effect(rates(), geometry, load, settings, hit_without=0, hit_with=0, swapped_fraction=2)


def test_roles_of_shipped_machines():
    roles = find_roles(open_machine("hillinfer_u50"))
    assert (roles.gpu, roles.cpu, roles.card) == ("gpu", "cpu", "fpga")
    assert (roles.hot_tier, roles.card_tier, roles.cold_tier) == ("host_memory", "card_memory", "nand")
    bare = find_roles(open_machine("dgx_h100"))
    assert (bare.cpu, bare.card, bare.card_tier) == ("", "", "")
    with pytest.raises(ValueError, match="machine pam has no tier of kind host_memory"):
        find_roles(open_machine("pam"))


def test_a_gpu_memory_without_a_gpu_is_refused(rates):
    class Headless(rates):
        @property
        def description(self):
            whole = super().description
            return replace(whole, processors=whole.processors[1:])

    with pytest.raises(ValueError, match="machine rates has no processor at vram"):
        find_roles(Headless())


@pytest.mark.parametrize(
    ("tokens", "tier", "share", "message"),
    [
        (0, "nand", 1.0, "tokens is 0; allowed: from 1"),
        (1, "nand", 0.0, "computed_share is 0.0; allowed: above 0, to 1"),
        (1, "tape", 1.0, "tier is 'tape'"),
    ],
)
def test_bad_recoveries_are_refused(rates, geometry, tokens, tier, share, message):
    with pytest.raises(ValueError, match=message):
        recovery_times(rates(), geometry, tokens, tier, computed_share=share)


def test_recomputing_a_part_costs_its_attention_to_all_before_it(rates, geometry):
    """Two halves cost what the whole does: the second half attends to the first."""
    machine = rates(gpu_bytes=1e18)
    whole = recovery_times(machine, geometry, 1000, "nand").recompute_ps
    second = recovery_times(machine, geometry, 1000, "nand", computed_share=0.5).recompute_ps
    first = recovery_times(machine, geometry, 500, "nand").recompute_ps
    assert first + second == pytest.approx(whole, rel=1e-9)
