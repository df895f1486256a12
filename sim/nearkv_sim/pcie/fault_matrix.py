"""The fault matrix: every fault at every stage of a job, its trials, or why it cannot happen there."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_sim.pcie.fault_jobs import job_trials
from nearkv_sim.pcie.fault_links import link_trials
from nearkv_sim.pcie.fault_trial import FaultName, Stage, Trial

_POSTED = "posted: nobody waits for an answer, so that none can be bad, late or missing"
_NO_HANDLER = "no interrupt belongs to this stage"
_NO_QUEUE = "queues hold jobs and completions"
_FIXED = "the polled word, the completion and the message have one size"
_CONSTANT = "goes to an address of the host's own, which no job names"
_DOORBELLS = "a doorbell is a register; there is one for submissions and one for completions"

_NOT_APPLICABLE = {
    **{(fault, Stage.RESULT_WRITE): _POSTED for fault in (FaultName.UR, FaultName.CA, FaultName.TIMEOUT)},
    **{(fault, Stage.COMPLETION): _POSTED for fault in (FaultName.UR, FaultName.CA, FaultName.TIMEOUT)},
    **{(FaultName.LOST_MSI, stage): _NO_HANDLER for stage in Stage if stage is not Stage.COMPLETION},
    (FaultName.ILLEGAL_DESCRIPTOR, Stage.RESULT_WRITE): "a descriptor says nothing of results",
    (FaultName.OUTSIDE, Stage.COMPLETION): _CONSTANT,
    (FaultName.ZERO_LENGTH, Stage.COMPLETION): _FIXED,
    (FaultName.OVERLAPPING, Stage.REGISTER): "registers have one place each; a load or store has one word",
    (FaultName.OVERLAPPING, Stage.QUERY_LOAD): "list and codes are only read: what is read may overlap",
    (FaultName.OVERLAPPING, Stage.COMPLETION): _CONSTANT,
    (FaultName.WRAP_AROUND, Stage.REGISTER): _NO_QUEUE,
    (FaultName.WRAP_AROUND, Stage.KEY_READ): _NO_QUEUE,
    (FaultName.WRAP_AROUND, Stage.RESULT_WRITE): _NO_QUEUE,
    (FaultName.DOORBELL, Stage.QUERY_LOAD): _DOORBELLS,
    (FaultName.DOORBELL, Stage.KEY_READ): _DOORBELLS,
    (FaultName.DOORBELL, Stage.RESULT_WRITE): _DOORBELLS,
}


@dataclass(frozen=True)
class Cell:
    """A fault at a stage.

    Attributes:
        fault, stage: which.
        trials: ways to have it.
        reason: why there is none; empty if there are trials.

    """

    fault: FaultName
    stage: Stage
    trials: tuple[Trial, ...]
    reason: str


def all_trials() -> list[Trial]:
    """Every trial, in an order that never changes."""
    return [*link_trials(), *job_trials()]


def matrix() -> list[Cell]:
    """Every cell, by fault and stage."""
    trials = all_trials()
    return [
        Cell(
            fault,
            stage,
            tuple(trial for trial in trials if (trial.fault, trial.stage) == (fault, stage)),
            _NOT_APPLICABLE.get((fault, stage), ""),
        )
        for fault in FaultName
        for stage in Stage
    ]
