"""Emergency mode: all three measures, and hysteresis both ways."""

from __future__ import annotations

import pytest

from nearkv.pipeline.decode import run_decode
from nearkv.pipeline.emergency import EmergencyLimits, EmergencyMode
from nearkv.pipeline.settings import PipelineSettings
from nearkv.pipeline.work import StepLoad

NORMAL = PipelineSettings()


def test_the_articles_three_measures():
    mode = EmergencyMode()
    assert mode.settings(20, NORMAL) == NORMAL
    found = mode.settings(21, NORMAL)
    assert (found.select_fraction, found.code_bits, found.link_cap) == (0.15, 4, 0.70)
    assert mode.settings(21, PipelineSettings(select_fraction=0.2, link_cap=0.5)) == PipelineSettings(
        select_fraction=0.2, code_bits=4, link_cap=0.5
    )
    assert mode.settings(21, PipelineSettings(select_fraction=0.5)).select_fraction == 0.25


def test_a_batch_around_the_limit_does_not_switch_back_and_forth():
    mode = EmergencyMode(EmergencyLimits(enter_above=20, leave_at=16, least_steps=3))
    batches = [20, 21, 20, 19, 21, 17, 17, 16, 20, 17, 21, 10, 10, 10, 10]
    active = []
    for batch in batches:
        mode.settings(batch, NORMAL)
        active.append(mode.active)
    assert active == [False, *[True] * 6, False, False, False, True, True, True, False, False]
    assert mode.entered == 2


def test_links_stay_below_their_cap_and_int4_moves_half_the_codes(rates, geometry):
    """A machine bound by its drive link: bytes over the whole time, as a share of its rate."""
    machine = rates(card_capacity_bytes=8)
    load = StepLoad(context_tokens=4000, batch=32, hot_bytes=0)
    runs = [
        run_decode(machine, geometry, load, settings, steps=2)
        for settings in (NORMAL, EmergencyMode().settings(32, NORMAL))
    ]
    carried = [
        run.steps
        * (run.cold_traffic_bytes + run.layers * run.work.scores)
        / (machine.drive_link * run.schedule.time_ps / 10**12)
        for run in runs
    ]
    assert carried[0] > 0.9
    assert 0.6 < carried[1] <= 0.70
    assert runs[1].work.streamed == pytest.approx(runs[0].work.streamed / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"leave_at": 20}, "leave_at is 20 and enter_above 20; allowed: leave_at from 1, below enter_above"),
        ({"leave_at": 0}, "leave_at is 0"),
        ({"least_steps": 0}, "least_steps is 0; allowed: from 1"),
    ],
)
def test_bad_limits_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        EmergencyLimits(**values)


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="batch is 0; allowed: from 1"):
        EmergencyMode().settings(0, NORMAL)
