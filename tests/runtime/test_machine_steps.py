"""Steps of a run timed on a described machine."""

from __future__ import annotations

import csv
import io
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig, Selection
from nearkv.experiments.machine_steps import TIMELINE_STEPS, MachineReplay
from nearkv.experiments.machine_summary import machine_csv, machine_summary, machine_text
from nearkv.experiments.observer import RunObserver
from nearkv.experiments.output import write_output
from nearkv.experiments.runner import run_experiment
from nearkv.integrations.prometheus import MetricsEndpoint
from nearkv.timeline import chrome_trace


def config_of(policy: str = "hill", **changes) -> ExperimentConfig:
    settings = {"machine": "hillinfer", "model": "smollm2_135m", "machine_every": 4, "batch": 2, "steps": 9}
    return ExperimentConfig(trace=Path("a"), policy=PolicyConfig(policy), **settings | changes)


@pytest.fixture
def timed(trace_of, fake_device):
    def timed(config: ExperimentConfig):
        replay = MachineReplay(config)
        observers = [RunObserver(replay, None).observe]
        return replay, run_experiment(config, trace_of(), fake_device(), observers=observers)

    return timed


def test_every_so_manyth_step_is_timed_the_first_always(timed):
    replay, result = timed(config_of())
    assert [step.step for step in replay.steps] == [0, 4, 8]
    assert [step.context_tokens for step in replay.steps] == [301, 305, 309]
    assert result.complete


def test_no_step_beats_its_bound_and_overlap_saves_time(timed):
    replay, _ = timed(config_of(context_tokens=32768))
    for step in replay.steps:
        assert step.bound_ps <= step.time_ps < step.serial_ps
        assert max(step.busy_ps.values()) <= step.time_ps
        assert step.busy_ps[step.busiest] == max(step.busy_ps.values())
        assert sum(step.gpu_stalls_ps.values()) + step.busy_ps["gpu"] <= step.time_ps


def test_time_moves_with_context_batch_format_and_link(timed):
    def time_ps(**changes) -> int:
        return timed(config_of(steps=1, **changes))[0].steps[0].time_ps

    base = time_ps(context_tokens=32768)
    assert time_ps(context_tokens=65536) > 1.5 * base
    assert time_ps(context_tokens=32768, batch=4) > 1.5 * base
    assert time_ps(context_tokens=32768, link_cap=0.1) > base
    assert time_ps(context_tokens=32768, hot_fraction=0.9) < base


@pytest.mark.parametrize("context_tokens", [1, 2, 3])
def test_a_context_of_a_few_tokens_has_a_time(timed, context_tokens):
    replay, _ = timed(config_of(steps=1, batch=1, context_tokens=context_tokens))
    assert replay.steps[0].bound_ps <= replay.steps[0].time_ps


def test_a_setting_that_says_nothing_on_a_machine_is_noted(timed):
    replay, result = timed(config_of(steps=1, uniform_score=True))
    other, plain = timed(config_of(steps=1))
    assert result.config.notes == (
        "on the machine the card scores cold tokens only: uniform_score has no effect there",
    )
    assert plain.config.notes == ()
    assert replay.steps[0].busy_ps["fpga"] == other.steps[0].busy_ps["fpga"]


def test_hot_only_asks_nothing_of_the_card(timed):
    replay, _ = timed(config_of(selection=Selection.HOT_ONLY))
    for step in replay.steps:
        assert step.busy_ps.get("fpga", 0) == 0
        assert "gpu" in step.busy_ps


def test_energy_wear_and_temperature_add_up(timed):
    replay, _ = timed(config_of(context_tokens=32768))
    first, *_, last = replay.steps
    assert {"gpu", "cpu", "fpga", "nand"} <= set(first.energy_j)
    assert all(joules >= 0 for step in replay.steps for joules in step.energy_j.values())
    assert last.celsius["fpga"] > 0
    assert 0 < first.wear["nand"] < last.wear["nand"]
    assert replay.life_years["nand"] > 0
    idle_w = sum(unit.count * unit.idle_power_w for unit in replay.machine.units.values())
    assert sum(first.energy_j.values()) > idle_w * first.time_ps / 1e12


def test_summary_is_that_of_the_steps(timed):
    replay, _ = timed(config_of(context_tokens=4096))
    summary = machine_summary(replay, 2)
    steps = replay.steps
    seconds = sum(step.time_ps for step in steps) / 1e12
    assert summary["tokens_per_s"] == pytest.approx(2 * len(steps) / seconds)
    assert summary["step_ms"] == pytest.approx(1000 * seconds / len(steps))
    energy = sum(joules for step in steps for joules in step.energy_j.values())
    assert sum(summary["energy_j_per_token"].values()) == pytest.approx(energy / (2 * len(steps)))
    assert "busiest" in machine_text(summary)
    rows = list(csv.DictReader(io.StringIO(machine_csv(steps))))
    assert [int(row["time_ps"]) for row in rows] == [step.time_ps for step in steps]
    assert float(rows[0]["energy_j: gpu"]) == steps[0].energy_j["gpu"]


def test_the_timeline_shows_who_waited_for_whom(timed):
    replay, _ = timed(config_of(machine_every=1, steps=5))
    assert len(replay.steps) > TIMELINE_STEPS
    events = json.loads(chrome_trace(replay.spans, replay.samples))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    for thread in {event["tid"] for event in spans}:  # overlapping events of a thread are dropped by viewers
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == thread)
        assert all(left[1] <= right[0] + 1e-6 for left, right in pairwise(own))
    shown = {event["args"]["decode step"] for event in spans}
    assert shown == {step.step for step in replay.steps[:TIMELINE_STEPS]}
    end_us = max(event["ts"] + event["dur"] for event in spans)
    assert end_us == pytest.approx(
        sum(step.time_ps for step in replay.steps[:TIMELINE_STEPS]) / 1e6, rel=1e-6
    )
    assert sum(event["ph"] == "s" for event in events) > 30  # most tasks of 30 layers wait for another
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"hot tokens per stream", "fetched tokens per stream"}


def test_two_runs_are_equal_to_the_byte(timed, tmp_path):
    for name in ("one", "two"):
        replay, result = timed(config_of(steps=5))
        names = write_output(tmp_path / name, result, None, replay)
    assert {"machine.csv", "machine.png", "timeline.json"} <= set(names)
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    page = (tmp_path / "one" / "report.html").read_text()
    assert "On machine hillinfer" in page
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["machine"]["timed_steps"] == 2


def test_a_monitor_sees_every_step(trace_of, fake_device):
    config = config_of()
    with MetricsEndpoint(0) as endpoint:
        seen = []
        endpoint.observe = seen.append
        observer = RunObserver(MachineReplay(config), endpoint)
        result = run_experiment(config, trace_of(), fake_device(), observers=[observer.observe])
    assert len(seen) == result.steps
    assert sum(sample.hits + sample.misses for sample in seen) == sum(
        r.selected_tokens for r in result.records
    )
    assert [sample.gpu_load is None for sample in seen[:5]] == [False, True, True, True, False]
    assert 0 < seen[0].gpu_load <= 1
    assert 0 < seen[0].tier_occupancy["hot"] < 1
    assert seen[0].moved_bytes.keys() > {"device", "gpu_link"}


def test_pim_tiers_attend_where_rows_lie(timed):
    """PAM's machine: no drive is written, time follows context, batch and what is found in the fast tier."""
    on_pam = {"machine": "pam", "model": "llama3_70b", "batch": 16, "steps": 1, "context_tokens": 8192}

    def step(**changes):
        return timed(config_of(**on_pam | changes))[0].steps[0]

    base = step()
    assert base.bound_ps <= base.time_ps < base.serial_ps
    assert {"gpus", "hbm_units", "ddr_units"} <= base.busy_ps.keys()
    assert set(base.wear.values()) == {0.0}
    assert step(context_tokens=65536).time_ps > base.time_ps
    assert step(batch=64).time_ps > base.time_ps
    few_hot, most_hot = (step(hot_fraction=share, policy="recency") for share in (0.45, 0.9))
    assert most_hot.busy_ps["ddr_units"] < few_hot.busy_ps["ddr_units"]
    assert step(selection=Selection.HOT_ONLY).busy_ps.get("ddr_units", 0) == 0


def test_a_cache_without_a_place_is_refused(timed):
    with pytest.raises(ValueError, match="tokens of each sequence have no place"):
        timed(
            config_of(machine="pam_deployment", model="opt_6_7b", batch=10_000, context_tokens=8192, steps=1)
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine": "nope"}, "machine is 'nope'"),
        ({"model": "nope"}, "nope"),
        (
            {"machine": "pam", "link_cap": 0.5},
            "link_cap is 0.5 on pam; allowed: 1, PIM tiers attend in place",
        ),
    ],
)
def test_what_the_machine_cannot_do_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        MachineReplay(config_of(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model is None; allowed: a model's name, with a machine"),
        ({"machine": None}, "model is smollm2_135m; allowed: None, without a machine it has no effect"),
        ({"machine": None, "model": None}, "batch is 2; allowed: 1, without a machine"),
        ({"batch": 0}, "batch is 0; allowed: 1 or more"),
        ({"machine_every": 0}, "machine_every is 0; allowed: 1 or more"),
        ({"context_tokens": 0}, "context_tokens is 0; allowed: 1 or more, or null"),
        ({"link_cap": 0.0}, "link_cap is 0.0; allowed: 0.001 to 1"),
        ({"link_cap": 1e-300}, "link_cap is 1e-300; allowed: 0.001 to 1"),
        ({"link_cap": math.nan}, "link_cap is nan"),
    ],
)
def test_f9_a_machine_option_that_can_do_nothing_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(**changes)
