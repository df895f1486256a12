"""The blocking driver of the queues against the model of the device."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.device.errors import DeviceError, DeviceTimeout, JobError, TransferError
from nearkv.device.queue_driver import QueueDriver
from nearkv.device.queue_driver_access import submission_of
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.queue_entries import (
    ARGUMENT_FIELDS,
    SUBMISSION,
    SUBMISSION_BYTES,
    Completion,
    GenericStatus,
    StatusType,
    pack_submission,
    unpack_submission,
)
from nearkv_sim.benches.pcie_queues_model import QueueModel, arguments_of

SQ, CQ = 0x1000, 0x2000
SECOND_PS = 10**12
JOB = {argument: 64 * (1 + index) for index, argument in enumerate(ARGUMENT_FIELDS)} | {
    reg.HEADS: 2,
    reg.HEAD_DIM: 128,
    reg.FLAGS: 1,
}


def start(run=lambda _arguments: (0, 0, 0), entries=4, **options):
    model = QueueModel(0x4000, run)
    driver = QueueDriver(model, SQ, CQ, entries, **options)
    driver.enable()
    return model, driver


@pytest.mark.parametrize("interrupts", [True, False])
def test_jobs_come_back_in_order_over_many_wraps(interrupts):
    seen = []

    def run(arguments):
        seen.append(arguments[reg.BLOCK_COUNT])
        return (0, 0, 0)

    _, driver = start(run, interrupts=interrupts)
    done = []
    for batch in range(30):
        first = 1 + 3 * batch
        identifiers = driver.submit(
            *(JOB | {reg.BLOCK_COUNT: first + index} for index in range(1 + batch % 3))
        )
        assert driver.free == 3 - len(identifiers)
        for identifier in identifiers:
            completion = driver.wait(SECOND_PS)
            assert (completion.command_id, completion.failed) == (identifier, False)
            done.append(identifier)
    assert done == list(range(60))
    assert seen == [1 + 3 * batch + index for batch in range(30) for index in range(1 + batch % 3)]


def test_entries_carry_every_argument():
    entry = submission_of(JOB, 7)
    assert len(entry) == SUBMISSION_BYTES
    assert arguments_of(entry) == JOB
    assert unpack_submission(entry)["command_id"] == 7


def test_fields_of_an_entry_fill_it_without_overlap():
    places = [
        byte for field in SUBMISSION.values() for byte in range(field.offset, field.offset + field.size_bytes)
    ]
    assert places == list(range(SUBMISSION_BYTES))


def test_completions_keep_every_field():
    whole = Completion(
        0xABCD, StatusType.KERNEL, 14, 4095, 1, token=(1 << 32) - 2, address_line=(1 << 48) - 3
    )
    assert Completion.unpack(whole.pack()) == whole
    assert whole.status is reg.ErrorCode.BUS_ERROR
    assert replace(whole, status_code=99).status is None
    assert replace(whole, status_type=3).status is None


def test_a_failed_job_is_an_error_with_address_and_token_and_the_next_one_runs():
    faults = iter([(reg.ErrorCode.BUS_ERROR, 0x12345678, 384), (0, 0, 0)])
    _, driver = start(lambda _arguments: next(faults))
    with pytest.raises(
        JobError, match=r"error BUS_ERROR in the line at 0x12345640, block of token 384"
    ) as error:
        driver.run(JOB, SECOND_PS)
    assert (error.value.code, error.value.address, error.value.token) == (14, 0x12345640, 384)
    assert not driver.run(JOB, SECOND_PS).failed


def test_a_refused_entry_names_the_byte():
    _, driver = start()
    with pytest.raises(DeviceError, match="status INVALID_FIELD, byte 4 of it"):
        driver.run(JOB | {reg.BLOCK_COUNT: 0}, SECOND_PS)
    driver.submit_entries(pack_submission(opcode=1, command_id=9))
    assert driver.wait(SECOND_PS).status is GenericStatus.INVALID_OPCODE


def test_arguments_that_no_entry_holds():
    for arguments, message in (
        ({reg.STATUS: 1}, "argument is STATUS; allowed: .*HEAD_DIM"),
        ({reg.KEY_BYTES: 100}, "KEY_BYTES is 100; allowed: multiples of 64"),
        ({reg.HEADS: 256}, "heads is 256; allowed: 0 to 255"),
        ({reg.FLAGS: 3}, "FLAGS is 0x3; allowed: 0 in bits 0xfe, reserved"),
        ({reg.FLAGS: 256}, "flags is 256; allowed: 0 to 255"),
    ):
        with pytest.raises(ValueError, match=message):
            submission_of(JOB | arguments, 0)
    with pytest.raises(ValueError, match="field is 'head'; allowed: opcode"):
        pack_submission(head=1)


def test_what_the_driver_refuses():
    model, driver = start()
    with pytest.raises(ValueError, match="4 jobs at once; allowed: 1 to 3"):
        driver.submit(*[JOB] * 4)
    with pytest.raises(ValueError, match="0 jobs at once"):
        driver.submit()
    with pytest.raises(ValueError, match="no job is under way"):
        driver.wait(SECOND_PS)
    with pytest.raises(ValueError, match="an entry has 60 bytes; allowed: 64"):
        driver.submit_entries(pack_submission(command_id=1), bytes(60))
    assert driver.free == 3
    driver.submit(JOB)
    with pytest.raises(ValueError, match="timeout_ps is 0; allowed: from 1"):
        driver.wait(0)
    with pytest.raises(ValueError, match="1 jobs are under way; allowed: none"):
        driver.run(JOB, SECOND_PS)
    with pytest.raises(ValueError, match="entries is 1; allowed: 2 to 4096"):
        QueueDriver(model, SQ, CQ, 1)
    with pytest.raises(ValueError, match="cq_address is 0x2040; allowed: multiples of 4096"):
        QueueDriver(model, SQ, CQ + 64)


def test_entries_that_memory_refuses_are_not_submitted(monkeypatch):
    model, driver = start()
    write_memory = model.write_memory

    def fails_at_the_second(address, data):
        if address == SQ + SUBMISSION_BYTES:
            raise TransferError("no")
        write_memory(address, data)

    monkeypatch.setattr(model, "write_memory", fails_at_the_second)
    with pytest.raises(TransferError):
        driver.submit(JOB, JOB)
    assert driver.free == 3
    monkeypatch.undo()
    assert [driver.run(JOB, SECOND_PS).sq_head for _ in range(5)] == [1, 2, 3, 0, 1]


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_device_that_hangs_is_a_timeout(interrupts):
    model, driver = start(interrupts=interrupts)
    model.hangs = True
    driver.submit(JOB)
    with pytest.raises(DeviceTimeout, match="job 0: no completion within 1000000000 ps"):
        driver.wait(SECOND_PS // 1000)
    with pytest.raises(DeviceTimeout, match=r"CSTS\.rdy is not 0 within 2 · 500 ms"):
        driver.disable()
    model.hangs = False
    driver.enable()
    assert not driver.run(JOB, SECOND_PS).failed


def test_a_stopped_device_is_told_from_a_slow_one():
    model, driver = start()
    model.hangs = True
    driver.submit(JOB)
    model.hangs = False
    model.write_register(qr.bar_offset(qr.SQ_TAIL_DOORBELL), 4)
    with pytest.raises(DeviceError, match="serves no queues: FATAL_CAUSE is SQ_DOORBELL"):
        driver.wait(SECOND_PS)


def test_a_completion_out_of_order_is_an_error():
    model, driver = start()
    model.hangs = True
    driver.submit(JOB)
    stray = Completion(5, 0, 0, 1, 1).pack()
    model.write_memory(CQ, np.frombuffer(stray, np.uint8))
    with pytest.raises(DeviceError, match="completion of job 5; job 0 is the oldest"):
        driver.wait(SECOND_PS)


def test_a_device_of_another_kind():
    model = QueueModel(0x4000, lambda _arguments: (0, 0, 0))
    model.read_register = lambda _offset: 0x20000
    with pytest.raises(DeviceError, match="VS is 0x20000; this driver knows 0x10000"):
        QueueDriver(model, SQ, CQ).enable()
