"""Every DRAM figure that somebody published."""

import pytest

from nearkv_sim.validation.check import run_check
from nearkv_sim.validation.dram import checks


@pytest.mark.parametrize("check", checks(), ids=lambda check: check.name)
def test_check(check):
    outcome = run_check(check)
    assert outcome.ok, (check.published, outcome.ours)
