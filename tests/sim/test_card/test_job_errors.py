"""Every way in which a job can be wrong: error code, address, first bad token; nothing written."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.spec import registers as reg

E = reg.ErrorCode
ROW_BYTES = 256  # folded codes of one block


def out_of(window, offset):
    """Descriptor 1 with an address moved."""

    def bend(bench):
        moved = getattr(bench.descriptors[1], window) + offset
        bench.descriptors[1] = replace(bench.descriptors[1], **{window: moved})
        return moved

    return bend


def descriptor(**changes):
    def bend(bench):
        bench.descriptors[1] = replace(bench.descriptors[1], **changes)
        return changes.get("query_address", 0)

    return bend


def argument(register, change):
    def bend(bench):
        bench.arguments[register] += change
        address = bench.arguments[register]
        return address if register in (reg.DESCRIPTOR_ADDRESS, reg.RESULT_ADDRESS) else 0

    return bend


OF_THE_JOB = [
    (argument(reg.BLOCK_COUNT, -3), E.BLOCK_COUNT),
    (argument(reg.HEADS, -2), E.HEADS),
    (argument(reg.HEADS, 2), E.HEADS),  # the group is 3
    (argument(reg.HEAD_DIM, 1), E.HEAD_DIM),
    (argument(reg.HEAD_DIM, 1 << 20), E.HEAD_DIM),
    (argument(reg.DESCRIPTOR_ADDRESS, 32), E.DESCRIPTOR_ADDRESS),
    (argument(reg.DESCRIPTOR_ADDRESS, 1 << 40), E.DESCRIPTOR_ADDRESS),
    (argument(reg.DESCRIPTOR_ADDRESS, -(1 << 32)), E.DESCRIPTOR_ADDRESS),
    (argument(reg.DESCRIPTOR_ADDRESS, 0x1000), E.UNWRITTEN),
    (argument(reg.RESULT_ADDRESS, 4), E.RESULT_ADDRESS),
    (argument(reg.RESULT_ADDRESS, 1 << 20), E.RESULT_ADDRESS),
    (argument(reg.RESULT_ADDRESS, -(1 << 32)), E.RESULT_ADDRESS),
]
OF_BLOCK_1 = [
    (descriptor(head_dim=128), E.HEAD_DIM),
    (descriptor(bias=(1,), shift=(0,)), E.HEADS),
    (descriptor(key_format=2), E.KEY_FORMAT),
    (descriptor(shift=(0, 8)), E.SHIFT),
    (out_of("key_address", 64), E.KEY_ADDRESS),
    (out_of("key_address", 2 * 4096), E.KEY_ADDRESS),
    (out_of("key_address", -2 * 4096), E.KEY_ADDRESS),
    (out_of("key_address", (1 << 64) - (1 << 33)), E.KEY_ADDRESS),
    (out_of("query_address", 32), E.QUERY_ADDRESS),
    (out_of("query_address", 2 * ROW_BYTES), E.QUERY_ADDRESS),
    (out_of("query_address", -2 * ROW_BYTES), E.QUERY_ADDRESS),
    (out_of("query_address", (1 << 64) - (1 << 33)), E.QUERY_ADDRESS),
    (descriptor(query_address=(1 << 63) - 64), E.QUERY_ADDRESS),
]


@pytest.mark.parametrize(("bend", "code"), OF_THE_JOB)
def test_a_bad_argument_stops_the_job(bench, bend, code):
    address = bend(bench)
    assert bench.run() == reg.JobState.FAILED
    found, at, token = bench.error
    assert (found, token) == (code, 0)
    assert at == address
    assert bench.untouched()


def test_a_short_result_window_stops_the_job(bench):
    bench.arguments[reg.RESULT_BYTES] -= 1
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.RESULT_ADDRESS, bench.result, 0)


@pytest.mark.parametrize(("bend", "code"), OF_BLOCK_1)
def test_a_bad_descriptor_stops_the_job(bench, bend, code):
    address = bend(bench)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (code, address, 116)
    assert bench.untouched()


@pytest.mark.parametrize(
    ("register", "change", "token", "code"),
    [
        (reg.KEY_BYTES, -1, 132, E.KEY_ADDRESS),
        (reg.KEY_ADDRESS, 1, 100, E.KEY_ADDRESS),
        (reg.QUERY_BYTES, -1, 132, E.QUERY_ADDRESS),
        (reg.QUERY_ADDRESS, 1, 100, E.QUERY_ADDRESS),
    ],
)
def test_windows_are_exact_to_the_byte(bench, register, change, token, code):
    bench.arguments[register] += change
    assert bench.run() == reg.JobState.FAILED
    assert (bench.error[0], bench.error[2]) == (code, token)


def test_a_window_beyond_the_memory_grants_nothing(bench):
    last = bench.card.memory_base + (1 << 20)
    bench.arguments[reg.KEY_BYTES] = (1 << 64) - 1
    bench.descriptors[2] = replace(bench.descriptors[2], key_address=last)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.KEY_ADDRESS, last, 132)


def test_the_first_bad_block_is_reported(bench):
    bench.descriptors[2] = replace(bench.descriptors[2], head_dim=128)
    bench.descriptors[1] = replace(bench.descriptors[1], query_address=1, shift=(9, 9))
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.SHIFT, 0, 116)


@pytest.mark.parametrize("window", ["key", "query"])
def test_unwritten_memory_is_not_scored(bench, window):
    empty = bench.card.memory_base + 0x80000
    address, size = getattr(reg, f"{window.upper()}_ADDRESS"), getattr(reg, f"{window.upper()}_BYTES")
    bench.arguments[size] += empty - bench.arguments[address]
    bench.descriptors[1] = replace(bench.descriptors[1], **{f"{window}_address": empty})
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.UNWRITTEN, empty, 116)


@pytest.mark.parametrize("code", [512, -512, 32767, -32768])
def test_a_code_outside_the_query_format(bench, code):
    bench.codes[1, 1, 5] = code
    bench.write(bench.queries, bench.codes.view(np.uint8).reshape(-1))
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.QUERY_CODE, bench.descriptors[1].query_address, 116)


def test_a_score_that_does_not_fit(bench):
    bench.descriptors[0] = replace(bench.descriptors[0], bias=(2**31 - 1, 0), shift=(7, 7))
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.SCORE_OVERFLOW, 0, 0)
    assert bench.untouched()


def test_an_error_is_kept_until_the_reset(bench):
    good = bench.descriptors[0]
    bench.descriptors[0] = replace(good, shift=(9, 0))
    assert bench.run() == reg.JobState.FAILED
    bench.acknowledge()
    bench.descriptors[0] = replace(good, head_dim=128)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.SHIFT, 0, 100)
    bench.acknowledge()
    bench.descriptors[0] = good
    assert bench.run() == reg.JobState.FAILED
    assert bench.untouched()
    bench.set(reg.RESET, 1)
    assert bench.error == (E.NONE, 0, 0)
    bench.enable_interrupts()
    assert bench.run() == reg.JobState.DONE
    assert not bench.untouched()
