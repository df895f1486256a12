"""What a validation check accepts."""

import math

import pytest

from nearkv_sim.validation.check import Check, at_most, run_check, within


@pytest.mark.parametrize(("ours", "ok"), [(90.0, True), (110.0, True), (89.9, False), (110.1, False)])
def test_within(ours, ok):
    outcome = run_check(within("a", "GB/s", 100.0, 0.1, "a paper", lambda: ours))
    assert outcome.ok is ok
    assert outcome.relative_error == pytest.approx(ours / 100 - 1)


def test_at_most():
    assert run_check(at_most("a", "%", 5.0, "a brief", lambda: 5.0)).ok
    outcome = run_check(at_most("a", "%", 5.0, "a brief", lambda: 5.1))
    assert not outcome.ok
    assert outcome.relative_error is None
    assert outcome.check.held_out
    assert not at_most("a", "%", 5.0, "a brief", lambda: 5.0, held_out=False).held_out


def test_nan_is_out():
    assert not run_check(at_most("a", "%", 5.0, "a brief", lambda: math.nan)).ok


@pytest.mark.parametrize(("low", "high"), [(2.0, 1.0), (0.0, math.inf), (math.nan, 1.0)])
def test_a_range_that_cannot_judge_is_refused(low, high):
    with pytest.raises(ValueError, match="range is"):
        Check("a", "", None, low, high, "x", lambda: 1.0)


def test_source_is_required():
    with pytest.raises(ValueError, match="source is empty"):
        within("a", "", 1.0, 0.1, " ", lambda: 1.0)
