"""Trials of the fault matrix that a hostile job, a reset or a bad call provokes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.register_map import WINDOW_BYTES, WORD_BYTES, Register
from nearkv_sim.card.card import MEMORY_BASE
from nearkv_sim.pcie.fault_trial import (
    PS_PER_US,
    BadCall,
    Ending,
    FaultName,
    HostileJob,
    NativeTest,
    Reset,
    Stage,
    Trial,
)

REFUSED_PS = 200 * PS_PER_US  # a job and its repetition, none longer than one over two blocks
AT_ONCE_PS = PS_PER_US
JOB_AGAIN_PS = 1300 * PS_PER_US  # the driver's deadline, and the job once more
NATIVE_PS = 400 * PS_PER_US
_FAR = 1 << 40  # beyond every card's memory
_EMPTY = np.zeros(0, np.uint8)
_Change = Callable[[int], int]


def _argument(register: Register, change: _Change, word: int = 0) -> HostileJob:
    return HostileJob(words={register.offset + WORD_BYTES * word: change})


def _descriptor(**changes: _Change) -> HostileJob:
    return HostileJob(descriptor=changes)


def _to(value: int) -> _Change:
    return lambda _old: value


def _add(value: int) -> _Change:
    return lambda old: old + value


# Stage, what, provocation, what the error must name.
_Row = tuple[Stage, str, HostileJob | BadCall, str]
_JOBS: dict[FaultName, list[_Row]] = {
    FaultName.ILLEGAL_DESCRIPTOR: [
        (Stage.REGISTER, "HEADS is not the descriptor's", _argument(reg.HEADS, _to(1)), "HEADS"),
        (Stage.REGISTER, "HEAD_DIM of no design", _argument(reg.HEAD_DIM, _to(65)), "HEAD_DIM"),
        (Stage.QUERY_LOAD, "format unknown", _descriptor(key_format=_to(9)), "KEY_FORMAT"),
        (Stage.QUERY_LOAD, "shift above the largest", _descriptor(shifts=_to(15)), "SHIFT"),
        (Stage.KEY_READ, "another generation", _descriptor(generation=_add(1)), "HEADER_IDENTITY"),
        (Stage.KEY_READ, "another first token", _descriptor(first_token=_add(1)), "HEADER_IDENTITY"),
    ],
    FaultName.OUTSIDE: [
        (Stage.REGISTER, "load", BadCall("read_register", (WINDOW_BYTES,)), "ValueError"),
        (Stage.REGISTER, "store", BadCall("write_register", (WINDOW_BYTES, 0)), "ValueError"),
        (Stage.REGISTER, "list", _argument(reg.DESCRIPTOR_ADDRESS, _to(_FAR >> 32), 1), "BUS_ERROR"),
        (Stage.QUERY_LOAD, "codes", _descriptor(query_address=_add(1 << 20)), "QUERY_ADDRESS"),
        (Stage.QUERY_LOAD, "transfer", BadCall("write_memory", (0, np.zeros(4, np.uint8))), "ValueError"),
        (Stage.KEY_READ, "block", _descriptor(key_address=_add(1 << 20)), "KEY_ADDRESS"),
        (
            Stage.KEY_READ,
            "block and window",
            HostileJob(
                words={reg.KEY_ADDRESS.offset + WORD_BYTES: _to(_FAR >> 32)},
                descriptor={"key_address": lambda old: old % (1 << 32) + _FAR},
            ),
            "BUS_ERROR",
        ),
        (Stage.KEY_READ, "transfer", BadCall("drive_to_card", (0, 0, 64)), "ValueError"),
        (Stage.RESULT_WRITE, "scores", _argument(reg.RESULT_ADDRESS, _to(_FAR >> 32), 1), "BUS_ERROR"),
        (Stage.RESULT_WRITE, "transfer", BadCall("read_memory", (0, 4)), "ValueError"),
    ],
    FaultName.ZERO_LENGTH: [
        (Stage.REGISTER, "BLOCK_COUNT", _argument(reg.BLOCK_COUNT, _to(0)), "BLOCK_COUNT"),
        (Stage.REGISTER, "HEADS", _argument(reg.HEADS, _to(0)), "HEADS"),
        (Stage.QUERY_LOAD, "QUERY_BYTES", _argument(reg.QUERY_BYTES, _to(0)), "QUERY_ADDRESS"),
        (Stage.QUERY_LOAD, "transfer", BadCall("write_memory", (MEMORY_BASE, _EMPTY)), "ValueError"),
        (Stage.KEY_READ, "KEY_BYTES", _argument(reg.KEY_BYTES, _to(0)), "KEY_ADDRESS"),
        (Stage.KEY_READ, "transfer", BadCall("drive_to_card", (0, MEMORY_BASE, 0)), "ValueError"),
        (Stage.RESULT_WRITE, "RESULT_BYTES", _argument(reg.RESULT_BYTES, _to(0)), "RESULT_ADDRESS"),
        (Stage.RESULT_WRITE, "transfer", BadCall("read_memory", (MEMORY_BASE, 0)), "ValueError"),
    ],
    FaultName.MISALIGNED: [
        (Stage.REGISTER, "load", BadCall("read_register", (2,)), "ValueError"),
        (Stage.REGISTER, "store", BadCall("write_register", (2, 0)), "ValueError"),
        (Stage.REGISTER, "list", _argument(reg.DESCRIPTOR_ADDRESS, _add(32)), "DESCRIPTOR_ADDRESS"),
        (Stage.QUERY_LOAD, "codes", _descriptor(query_address=_add(1)), "QUERY_ADDRESS"),
        (Stage.KEY_READ, "block", _descriptor(key_address=_add(64)), "KEY_ADDRESS"),
        (Stage.RESULT_WRITE, "scores", _argument(reg.RESULT_ADDRESS, _add(4)), "RESULT_ADDRESS"),
    ],
    FaultName.OVERLAPPING: [
        (
            Stage.KEY_READ,
            "block begins within another",
            HostileJob(
                words={reg.KEY_BYTES.offset: _add(1 << 16)}, descriptor={"key_address": _add(1 << 12)}
            ),
            "HEADER_CRC",
        ),
        (Stage.RESULT_WRITE, "scores over the list", _argument(reg.RESULT_ADDRESS, _add(1024)), "CRC32C"),
    ],
}
# Microseconds after the start, of a job over one block, which takes 35.
_RESETS = {
    Stage.REGISTER: ("before the start", 0),
    Stage.QUERY_LOAD: ("1 us after the start", 1),
    Stage.KEY_READ: ("15 us after the start", 15),
    Stage.RESULT_WRITE: ("33 us after the start", 33),
    Stage.COMPLETION: ("at the interrupt", 900),
}
_NATIVE: list[tuple[FaultName, Stage, str, str, Ending, str]] = [
    (
        FaultName.ILLEGAL_DESCRIPTOR,
        Stage.COMPLETION,
        "entry with an unknown opcode",
        "an_entry_with_an_unknown_opcode",
        Ending.ERROR,
        "INVALID_OPCODE",
    ),
    (
        FaultName.MISALIGNED,
        Stage.COMPLETION,
        "completion queue off a page",
        "a_completion_queue_off_a_page",
        Ending.ERROR,
        "CONFIGURATION",
    ),
    (
        FaultName.WRAP_AROUND,
        Stage.QUERY_LOAD,
        "submission queue, entry by entry",
        "entries_one_by_one_around_the_queue",
        Ending.SUCCESS,
        "",
    ),
    (
        FaultName.WRAP_AROUND,
        Stage.COMPLETION,
        "both queues, full",
        "full_queues_around",
        Ending.SUCCESS,
        "",
    ),
    (
        FaultName.DOORBELL,
        Stage.REGISTER,
        "tail beyond the submission queue",
        "a_tail_beyond_the_queue",
        Ending.ERROR,
        "SQ_DOORBELL",
    ),
    (
        FaultName.DOORBELL,
        Stage.COMPLETION,
        "head beyond what was posted",
        "a_head_beyond_what_was_posted",
        Ending.ERROR,
        "CQ_DOORBELL",
    ),
]


def job_trials() -> list[Trial]:
    """All of them, by fault and stage."""
    trials = [
        Trial(FaultName.RESET, stage, what, Reset(after_us * PS_PER_US), Ending.RETRY, JOB_AGAIN_PS)
        for stage, (what, after_us) in _RESETS.items()
    ]
    for fault, rows in _JOBS.items():
        for stage, what, provocation, cause in rows:
            deadline_ps = AT_ONCE_PS if isinstance(provocation, BadCall) else REFUSED_PS
            trials.append(Trial(fault, stage, what, provocation, Ending.ERROR, deadline_ps, cause))
    trials += [
        Trial(fault, stage, f"{what} (native)", NativeTest(test), ending, NATIVE_PS, cause)
        for fault, stage, what, test, ending, cause in _NATIVE
    ]
    return trials
