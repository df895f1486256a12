"""Published figures of PCIe."""

from nearkv_sim.validation import pcie
from nearkv_sim.validation.check import run_check


def test_every_check_is_within_tolerance():
    outcomes = [run_check(check) for check in pcie.checks()]
    assert len(outcomes) == 48 + 3
    assert [outcome.check.name for outcome in outcomes if not outcome.ok] == []
