"""The fault matrix: a sample of its trials, or with NEARKV_ALL_FAULTS=1 every one, and its page.

NEARKV_FAULT_SEED draws another sample.
"""

import json
import os
import random
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from nearkv_sim.pcie.fault_matrix import all_trials, matrix
from nearkv_sim.pcie.fault_native import run_native_trials
from nearkv_sim.pcie.fault_runner import Found, Work, run_trial
from nearkv_sim.pcie.fault_trial import Ending, FaultName, HostileJob, NativeTest, Stage
from nearkv_sim.pcie.faults import Fault, FaultKind, TlpRole
from nearkv_sim.pcie.hostile import HostileTransport

DOCS = Path(__file__).parents[2] / "docs"
ALL = os.environ.get("NEARKV_ALL_FAULTS") == "1"
SEED = int(os.environ.get("NEARKV_FAULT_SEED", "1"))
TRIALS = all_trials()
NATIVE = [trial for trial in TRIALS if isinstance(trial.provocation, NativeTest)]
OTHERS = [trial for trial in TRIALS if trial not in NATIVE]


def sample():
    """A trial of every fault that the transport can have."""
    draw = random.Random(SEED)
    by_fault = [[trial for trial in OTHERS if trial.fault is fault] for fault in FaultName]
    return [draw.choice(trials) for trials in by_fault if trials]


@pytest.fixture(scope="module")
def work(simulator):
    return Work(simulator, SEED)


@pytest.mark.parametrize("trial", OTHERS if ALL else sample(), ids=lambda trial: trial.name)
def test_it_ends_as_it_must_and_leaves_nothing(simulator, work, trial):
    print(f"NEARKV_FAULT_SEED={SEED}")
    assert run_trial(simulator, work, trial).differences(trial) == []


@pytest.mark.skipif(not ALL, reason="benches of the queues run the same in test_native_pcie and test_queues")
def test_the_queues_of_the_native_mode():
    found = run_native_trials(NATIVE)
    assert {trial.name: found[trial.name].differences(trial) for trial in NATIVE} == {
        trial.name: [] for trial in NATIVE
    }


def test_the_matrix_is_whole():
    cells = matrix()
    assert [(cell.fault, cell.stage) for cell in cells] == [(f, s) for f in FaultName for s in Stage]
    assert [cell for cell in cells if bool(cell.trials) is bool(cell.reason)] == []
    assert sum(len(cell.trials) for cell in cells) == len({trial.name for trial in TRIALS})
    provoked = [trial.provocation for trial in OTHERS if isinstance(trial.provocation, Fault)]
    assert {fault.fault for fault in provoked} == set(FaultKind)
    assert {fault.tlp for fault in provoked} == set(TlpRole)
    assert all(trial.cause for trial in TRIALS if trial.ending is Ending.ERROR)


def test_what_differs_is_found():
    trial = next(trial for trial in TRIALS if trial.cause == "KEY_CRC")
    good = Found(Ending.ERROR, "JobError: error KEY_CRC at address 0x0", trial.deadline_ps, ())
    assert good.differences(trial) == []
    for bad in (
        replace(good, ending=Ending.RETRY),
        replace(good, ending=None, cause="wrong scores"),
        replace(good, cause="JobError: error HEADER_CRC at address 0x0"),
        replace(good, elapsed_ps=trial.deadline_ps + 1),
        replace(good, left_over=("card tags: 1 instead of 0",)),
    ):
        assert len(bad.differences(trial)) == 1


def test_a_card_that_stays_hostile_is_found(simulator, work, monkeypatch):
    """What the runner says of the job behind a trial is no constant."""
    behave = HostileTransport.behave

    def behave_at_first(transport):
        if not hasattr(transport, "_job"):
            behave(transport)

    monkeypatch.setattr(HostileTransport, "behave", behave_at_first)
    trial = next(trial for trial in OTHERS if isinstance(trial.provocation, HostileJob))
    left_over = run_trial(simulator, work, trial).left_over
    assert any("the next job fails" in text for text in left_over)
    assert "the next job is retried" in left_over


def test_trials_of_the_native_mode_are_not_the_transports(simulator, work):
    with pytest.raises(ValueError, match=r"NativeTest.*; allowed: those of this transport"):
        run_trial(simulator, work, NATIVE[0])
    with pytest.raises(ValueError, match="allowed: one of the native mode"):
        run_native_trials(OTHERS[:1])


def test_the_page_is_current():
    """Of the list, and of the last whole run, in which every trial ended as it must."""
    records = json.loads((DOCS / "faults.json").read_text(encoding="utf-8"))
    endings = {name: record["ending"] for name, record in records.items()}
    assert endings == {trial.name: trial.ending.value for trial in TRIALS}, "run `python docs/faults.py`"
    assert [name for name, record in records.items() if record["differs"]] == []
    page = runpy.run_path(str(DOCS / "faults.py"))["page"](records)
    assert (DOCS / "faults.md").read_text(encoding="utf-8") == page, "run `python docs/faults.py`"
