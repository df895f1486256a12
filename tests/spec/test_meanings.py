"""Every value of a register has its meaning in the documents."""

from __future__ import annotations

import pytest

from nearkv_hdl.spec.job_state import ERROR_MEANINGS, JOB_STATE_MEANINGS, ErrorCode, JobState
from nearkv_hdl.spec.queue_registers import FATAL_CAUSE_MEANINGS, FatalCause


@pytest.mark.parametrize(
    ("values", "meanings"),
    [(JobState, JOB_STATE_MEANINGS), (ErrorCode, ERROR_MEANINGS), (FatalCause, FATAL_CAUSE_MEANINGS)],
)
def test_every_value_has_a_meaning_of_its_own(values, meanings):
    assert list(meanings) == list(values)
    assert all(meanings.values())
    assert len(set(meanings.values())) == len(values)
