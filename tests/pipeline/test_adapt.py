"""The controller: where it ends, how it moves, and what the pipeline gains on the paper's machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv.pipeline.adapt import AdaptSettings, BalanceController, BalanceRule
from nearkv.pipeline.beta import balanced_ratio, overlapped_ratio, skew_corrected_ratio
from nearkv.pipeline.comparison import cache_bytes, hot_capacity_bytes
from nearkv.pipeline.decode import DecodeRun, run_decode
from nearkv.pipeline.settings import PipelineSettings
from nearkv.pipeline.work import StepLoad
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.model_shapes import named_model

GIB = 2**30
CONTEXT = 36_000


def adapted(machine, model, settings, controller, load, steps) -> list[DecodeRun]:
    runs = []
    for _ in range(steps):
        runs.append(run_decode(machine, model, load, settings))
        load, settings = controller.observe(runs[-1])
    return runs


@pytest.fixture(scope="module")
def hillinfer():
    return open_machine("hillinfer")


@pytest.mark.parametrize(
    ("name", "batch", "lookahead"),
    [("qwen_7b", 2, 1), ("opt_6_7b", 2, 1), ("qwen_7b", 2, 2), ("llama_13b", 1, 2)],
)
def test_the_straggler_is_seen_and_removed_on_the_papers_machine(hillinfer, name, batch, lookahead):
    """From β = 1 the GPU waits for the drive; balanced, the step is as long as its busiest resource."""
    model = named_model(name).config
    kv_bytes = cache_bytes(model, CONTEXT, batch)
    room = hot_capacity_bytes(hillinfer, model)
    controller = BalanceController(AdaptSettings(hot_capacity_bytes=room, moved_bytes_per_step=4 * GIB))
    load = StepLoad(context_tokens=CONTEXT, batch=batch, hot_bytes=kv_bytes // 2)
    pipeline = PipelineSettings(lookahead_layers=lookahead)
    first, *_, last = adapted(hillinfer, model, pipeline, controller, load, 8)
    stalls = first.schedule.stalls_ps("gpu")
    assert max(stalls, key=lambda name: stalls[name]) == "fetch_cold"
    assert stalls["fetch_cold"] > 0.7 * first.step_ps
    assert last.load.promoted_bytes == last.load.demoted_bytes == 0  # it has come to rest
    assert last.step_ps < first.step_ps / 2.5
    assert last.step_ps <= 1.1 * last.busiest_ps
    assert last.step_ps <= 1.2 * last.bound_ps
    assert last.serial_ps > 1.5 * last.step_ps


def test_overlapped_balance_is_faster_than_the_papers(hillinfer):
    """β for scoring and then fetching leaves the cold side too much, once both overlap."""
    model = named_model("qwen_7b").config
    load = StepLoad(context_tokens=CONTEXT, batch=2, hot_bytes=cache_bytes(model, CONTEXT, 2) // 2)

    def settled_ps(rule: BalanceRule) -> int:
        settings = AdaptSettings(
            hot_capacity_bytes=64 * GIB, rule=rule, moved_bytes_per_step=32 * GIB, dead_band=0
        )
        runs = adapted(hillinfer, model, PipelineSettings(), BalanceController(settings), load, 5)
        return run_decode(
            hillinfer, model, replace(runs[-1].load, promoted_bytes=0, demoted_bytes=0), PipelineSettings()
        ).step_ps

    assert settled_ps(BalanceRule.OVERLAPPED) < 0.9 * settled_ps(BalanceRule.SERIAL)


@pytest.fixture
def half_hot(geometry):
    return StepLoad(context_tokens=20_000, batch=4, hot_bytes=cache_bytes(geometry, 20_000, 4) // 2)


def test_moves_are_limited_and_cost_their_transfers(rates, geometry, half_hot):
    settings = AdaptSettings(hot_capacity_bytes=64 * GIB, moved_bytes_per_step=10**8)
    controller = BalanceController(settings)
    run = run_decode(rates(), geometry, half_hot, PipelineSettings())
    load, _ = controller.observe(run)
    assert load.hot_bytes - half_hot.hot_bytes == load.promoted_bytes == 10**8
    assert load.demoted_bytes == 0
    moved = run_decode(rates(), geometry, load, PipelineSettings())
    assert moved.duration_ps("promote") > 0


def test_noise_below_the_dead_band_moves_nothing(rates, geometry, half_hot):
    settings = AdaptSettings(hot_capacity_bytes=64 * GIB, moved_bytes_per_step=10**12, mean_weight=1.0)
    runs = adapted(rates(), geometry, PipelineSettings(), BalanceController(settings), half_hot, 6)
    wobbled = BalanceController(settings)
    for factor in (0.99, 1.0, 1.01):
        machine = rates(drive_link=3.2e9 * factor)
        load, _ = wobbled.observe(run_decode(machine, geometry, runs[-1].load, PipelineSettings()))
        assert load.hot_bytes == runs[-1].load.hot_bytes
    load, _ = wobbled.observe(
        run_decode(rates(drive_link=1.6e9), geometry, runs[-1].load, PipelineSettings())
    )
    assert load.hot_bytes > runs[-1].load.hot_bytes


def test_the_mean_is_one_of_times(rates, geometry, half_hot):
    controller = BalanceController(AdaptSettings(hot_capacity_bytes=64 * GIB, mean_weight=0.25))
    first = run_decode(rates(cpu=100e9), geometry, half_hot, PipelineSettings())
    second = run_decode(rates(cpu=50e9), geometry, half_hot, PipelineSettings())
    controller.observe(first)
    controller.observe(second)
    was, now = first.rates().hot_score_bytes_per_s, second.rates().hot_score_bytes_per_s
    assert controller.rates.hot_score_bytes_per_s == pytest.approx(1 / (0.75 / was + 0.25 / now), rel=1e-12)


@pytest.mark.parametrize(("cpu", "expected"), [(500e9, 0.05), (5e9, 0.25)])
def test_select_fraction_follows_what_can_be_hidden(rates, geometry, half_hot, cpu, expected):
    """A fast CPU leaves no room for fetches to hide in, a slow one plenty."""
    settings = AdaptSettings(hot_capacity_bytes=64 * GIB, select_range=(0.05, 0.25))
    runs = adapted(rates(cpu=cpu), geometry, PipelineSettings(), BalanceController(settings), half_hot, 6)
    assert runs[-1].settings.select_fraction == expected


@pytest.mark.parametrize("rule", list(BalanceRule))
def test_rules_and_the_skew_correction_have_an_effect(rates, geometry, half_hot, rule):
    run = run_decode(rates(), geometry, half_hot, PipelineSettings())
    plain = BalanceController(AdaptSettings(hot_capacity_bytes=64 * GIB, rule=rule))
    skewed = BalanceController(AdaptSettings(hot_capacity_bytes=64 * GIB, rule=rule, skew_correction=True))
    for controller in (plain, skewed):
        controller.observe(run)
    formula = {BalanceRule.SERIAL: balanced_ratio, BalanceRule.OVERLAPPED: overlapped_ratio}[rule]
    assert plain.ratio(run, 0.1) == formula(run.rates(), 0.1)
    share = run.fetched_bytes / cache_bytes(geometry, 20_000, 4)
    assert skewed.ratio(run, 0.1) == skew_corrected_ratio(plain.ratio(run, 0.1), share)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hot_capacity_bytes": 0}, "hot_capacity_bytes is 0; allowed: from 1"),
        ({"mean_weight": 0.0}, "mean_weight is 0.0"),
        ({"dead_band": 1.0}, "dead_band is 1.0; allowed: 0 to below 1"),
        ({"select_range": (0.2, 0.1)}, "select_range is .0.2, 0.1.; allowed: least first"),
        ({"moved_bytes_per_step": 0}, "moved_bytes_per_step is 0"),
    ],
)
def test_bad_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        AdaptSettings(**({"hot_capacity_bytes": 1} | values))


def test_a_ratio_needs_a_measurement(rates, geometry, half_hot):
    run = run_decode(rates(), geometry, half_hot, PipelineSettings())
    with pytest.raises(ValueError, match="no step has been observed"):
        BalanceController(AdaptSettings(hot_capacity_bytes=1)).ratio(run, 0.1)
