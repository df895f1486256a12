"""Fault plans: what they refuse, YAML, seeds."""

import pytest
import yaml

from nearkv_sim.pcie.faults import Fault, FaultKind, FaultPlan, TlpRole, roles_of

PLAN = FaultPlan(
    (
        Fault(TlpRole.QUERY_LOAD, 3, FaultKind.CORRUPTED, count=2),
        Fault(TlpRole.MSI, 0, FaultKind.LOST_MSI),
        Fault(TlpRole.REGISTER_READ, 7, FaultKind.DELAYED, delay_ps=500),
    )
)


def test_round_trip_by_yaml(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN.to_dict()))
    assert FaultPlan.load(path) == PLAN


def test_the_same_seed_draws_the_same_plan():
    plans = [FaultPlan.random(seed, 20) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert len(plans[0].faults) == 20
    only = FaultPlan.random(5, 16, kinds=[FaultKind.LOST_MSI])
    assert {(fault.tlp, fault.fault) for fault in only.faults} == {(TlpRole.MSI, FaultKind.LOST_MSI)}
    with pytest.raises(ValueError, match="faults is 17; allowed is an integer from 0 to 16"):
        FaultPlan.random(5, 17, kinds=[FaultKind.LOST_MSI])


def test_only_requests_are_refused_and_only_data_is_poisoned():
    requests = [TlpRole.REGISTER_READ, TlpRole.QUERY_LOAD, TlpRole.KEY_WRITE]
    assert roles_of(FaultKind.UR) == roles_of(FaultKind.CA) == requests
    assert set(roles_of(FaultKind.POISONED)) == set(TlpRole) - set(requests)
    assert roles_of(FaultKind.CORRUPTED) == list(TlpRole)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"tlp": "msi", "index": 0, "fault": "ur"}, "tlp is msi for fault ur; allowed: register_read, "),
        ({"tlp": "msi", "index": -1, "fault": "dropped"}, "index is -1"),
        ({"tlp": "msi", "index": 0, "fault": "dropped", "count": 17}, "count is 17"),
        ({"tlp": "msi", "index": 0, "fault": "poisoned", "count": 2}, "count is 2"),
        ({"tlp": "msi", "index": 0, "fault": "delayed"}, "delay_ps is 0"),
        ({"tlp": "msi", "index": 0, "fault": "dropped", "delay_ps": 1}, "delay_ps is 1"),
        ({"tlp": "irq", "index": 0, "fault": "dropped"}, "tlp is 'irq'; allowed: register_read"),
        ({"tlp": "msi", "index": 0, "fault": "gone"}, "fault is 'gone'; allowed: dropped"),
        ({"tlp": "msi", "index": 0}, "allowed: tlp, index, fault"),
        ({"tlp": "msi", "index": 0, "fault": "dropped", "when": 1}, "allowed: tlp, index, fault"),
        ("msi", "fault is 'msi'"),
    ],
)
def test_bad_faults_are_refused(entry, reason):
    with pytest.raises(ValueError, match=reason):
        FaultPlan.from_dict({"faults": [entry]})


def test_bad_plans_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two for msi 0"):
        FaultPlan((Fault(TlpRole.MSI, 0, FaultKind.LOST_MSI), Fault(TlpRole.MSI, 0, FaultKind.DROPPED)))
    for content in (None, [], {"fault": []}, {"faults": None}):
        with pytest.raises(ValueError, match="allowed: one key, faults"):
            FaultPlan.from_dict(content)
    path = tmp_path / "plan.yaml"
    path.write_text("faults: [")
    with pytest.raises(ValueError, match=r"plan.yaml: "):
        FaultPlan.load(path)
