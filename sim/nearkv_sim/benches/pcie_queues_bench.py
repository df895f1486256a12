"""cocotb bench of QueueUnit: entries good and bad, full queues, doorbells, bad memory, messages, stops."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, Timer
from cocotbext.axi import AxiResp

from nearkv.device.errors import DeviceError
from nearkv.device.queue_driver import QueueDriver
from nearkv.device.queue_driver_access import submission_of
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.queue_entries import (
    ARGUMENT_FIELDS,
    COMPLETION_BYTES,
    SUBMISSION,
    SUBMISSION_BYTES,
    Completion,
)
from nearkv_hdl.spec.register_map import WINDOW_BYTES, Register
from nearkv_sim.benches.pcie_queues_harness import CQ, MESSAGE_ADDRESS, SQ, QueuesBench
from nearkv_sim.benches.pcie_queues_model import Fault, arguments_of, check_entry, completion_of

_TIMEOUT_US = 2000
_WAIT_PS = 200 * 10**6
_FINE: Fault = (0, 0, 0)


async def bench_of(dut: Any, entries: int = 4) -> QueuesBench:
    """A bench whose device is enumerated, its queues enabled."""
    bench = QueuesBench(dut, entries)
    await bench.start()
    await bench.call(bench.driver.enable)
    return bench


async def error_of_wait(bench: QueuesBench) -> str:
    """What the driver says of a device that has stopped."""
    try:
        await bench.call(bench.driver.wait, 20 * 10**6)
    except DeviceError as error:
        return str(error)
    raise AssertionError("a completion came")


def random_arguments() -> dict[Register, int]:
    """Arguments that an entry can hold, all of its bits in use."""
    arguments = {}
    for argument, name in ARGUMENT_FIELDS.items():
        field = SUBMISSION[name]
        value = random.getrandbits(8 * field.size_bytes) & argument.used_mask or 1
        arguments[argument] = value * field.unit if not name.endswith("_address") else value & ~63
    return arguments


def random_fault() -> Fault:
    """How a job ends: well, or in any other way."""
    if random.random() < 0.5:
        return _FINE
    return random.randrange(1, 15), random.getrandbits(64), random.getrandbits(32)


def spoilt(entry: bytes) -> bytes:
    """The entry with a random byte replaced: an error, or another good one."""
    at = random.choice([0, *range(2, SUBMISSION_BYTES)])
    return entry[:at] + bytes([random.choice((0, random.getrandbits(8)))]) + entry[at + 1 :]


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def jobs_in_order(dut: Any) -> None:
    """Batches of good and bad entries over many rounds: arguments, completions, messages behind them."""
    bench = await bench_of(dut)
    sq_head, phase, tail = 0, 1, 0
    for batch in range(16):
        bench.pause(0.3 * (batch % 2))
        entries = [submission_of(random_arguments(), random.getrandbits(16)) for _ in range(1 + batch % 3)]
        entries = [spoilt(entry) if random.random() < 0.4 else entry for entry in entries]
        faults = [random_fault() if check_entry(entry)[0] == 0 else _FINE for entry in entries]
        good = [index for index, entry in enumerate(entries) if check_entry(entry)[0] == 0]
        bench.kernel.outcomes.extend((random.randrange(100), faults[index]) for index in good)
        bench.kernel.jobs.clear()
        bench.memory.writes.clear()
        await bench.call(bench.driver.submit_entries, *entries)
        places = []
        for entry, fault in zip(entries, faults, strict=True):
            completion = await bench.call(bench.driver.wait, _WAIT_PS)
            sq_head = (sq_head + 1) % 4
            assert completion == completion_of(entry, fault, sq_head, phase)
            places.append(CQ + COMPLETION_BYTES * tail)
            tail = (tail + 1) % 4
            phase ^= tail == 0
        expected = [arguments_of(entries[index]) for index in good]
        assert [{name: job[name] for name in ARGUMENT_FIELDS} for job in bench.kernel.jobs] == expected
        await Timer(2, unit="us")
        written = [address for address, _ in bench.memory.writes]
        assert [address for address in written if address != MESSAGE_ADDRESS] == places
        # One message may stand for several completions, but none comes before its own.
        assert written[0] == places[0]
        assert written[-1] == MESSAGE_ADDRESS
    assert bench.kernel.resets >= 1


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def a_full_completion_queue_holds_back(dut: Any) -> None:
    """Of six jobs three run while the host takes no completion, one more for every one it takes."""
    bench = await bench_of(dut)
    await bench.call(bench.driver.disable)
    await bench.write(qr.AQA, qr.AQA.pack(asqs=7, acqs=3))
    await bench.write(qr.CC, 1)
    bench.kernel.outcomes.extend([(20, _FINE)] * 6)
    for index in range(6):
        at = SQ + SUBMISSION_BYTES * index
        bench.memory.content[at : at + SUBMISSION_BYTES] = submission_of(random_arguments(), index)
    await bench.write(qr.SQ_TAIL_DOORBELL, 6)
    for head in range(4):
        await ClockCycles(dut.clk, 1500)
        assert len(bench.kernel.jobs) == 3 + head
        at = CQ + COMPLETION_BYTES * head
        completion = Completion.unpack(bytes(bench.memory.content[at : at + COMPLETION_BYTES]))
        assert (completion.command_id, completion.phase) == (head, 1 if head < 4 else 0)
        await bench.write(qr.CQ_HEAD_DOORBELL, (head + 1) % 4)
    assert await bench.read(qr.SQ_HEAD) == 6


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def doorbells_out_of_range(dut: Any) -> None:
    """The job in flight is completed, then the device stops until it is enabled anew."""
    bench = await bench_of(dut)
    cases = (
        (qr.SQ_TAIL_DOORBELL, 4, qr.FatalCause.SQ_DOORBELL),
        (qr.SQ_TAIL_DOORBELL, 0xFFFF, qr.FatalCause.SQ_DOORBELL),
        (qr.CQ_HEAD_DOORBELL, 4, qr.FatalCause.CQ_DOORBELL),
        (qr.CQ_HEAD_DOORBELL, 0x8001, qr.FatalCause.CQ_DOORBELL),
        (qr.CQ_HEAD_DOORBELL, 2, qr.FatalCause.CQ_DOORBELL),  # beyond what was posted
    )
    for doorbell, index, cause in cases:
        bench.kernel.outcomes.append((600, _FINE))
        jobs = len(bench.kernel.jobs)
        await bench.call(bench.driver.submit, random_arguments())
        await ClockCycles(dut.clk, 300)
        await bench.write(doorbell, index)
        assert qr.CSTS.unpack(await bench.read(qr.CSTS)) == {"rdy": 1, "cfs": 1}
        assert await bench.read(qr.FATAL_CAUSE) == cause
        await bench.write(doorbell, 0)  # the first cause stays
        await ClockCycles(dut.clk, 1000)
        completion = await bench.call(bench.driver.wait, _WAIT_PS)
        assert not completion.failed
        await bench.call(bench.driver.submit, random_arguments())
        assert f"FATAL_CAUSE is {cause.name}" in await error_of_wait(bench)
        assert len(bench.kernel.jobs) == jobs + 1
        await bench.call(bench.driver.enable)
        bench.kernel.outcomes.append((5, _FINE))
        await bench.call(bench.driver.run, random_arguments(), _WAIT_PS)


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def queues_that_cannot_be(dut: Any) -> None:
    """A queue of one entry, or off a page: CSTS.cfs, never ready; then a usable pair."""
    bench = await bench_of(dut)
    await bench.call(bench.driver.disable)
    good = {qr.AQA: qr.AQA.pack(asqs=3, acqs=3), qr.ASQ: SQ, qr.ACQ: CQ}
    for register, value in (
        (qr.AQA, qr.AQA.pack(asqs=3)),
        (qr.AQA, qr.AQA.pack(acqs=3)),
        (qr.ASQ, SQ + 64),
        (qr.ACQ, CQ + 2048),
    ):
        await bench.write(register, value)
        await bench.write(qr.CC, 1)
        assert qr.CSTS.unpack(await bench.read(qr.CSTS)) == {"rdy": 0, "cfs": 1}
        assert await bench.read(qr.FATAL_CAUSE) == qr.FatalCause.CONFIGURATION
        await bench.write(qr.SQ_TAIL_DOORBELL, 1)
        assert await bench.read(qr.SQ_TAIL_DOORBELL) == 0
        await bench.write(register, good[register])
    await bench.call(bench.driver.enable)
    bench.kernel.outcomes.append((5, _FINE))
    await bench.call(bench.driver.run, random_arguments(), _WAIT_PS)


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def errors_of_the_memory(dut: Any) -> None:
    """An entry that cannot be read, a completion that cannot be written."""
    bench = await bench_of(dut)
    for address, cause, ran in ((SQ, qr.FatalCause.FETCH, 0), (CQ, qr.FatalCause.POST, 1)):
        bench.memory.bad = {address: AxiResp.SLVERR}
        bench.kernel.outcomes.append((5, _FINE))
        bench.kernel.jobs.clear()
        await bench.call(bench.driver.submit, random_arguments())
        assert f"FATAL_CAUSE is {cause.name}" in await error_of_wait(bench)
        assert await bench.read(qr.FATAL_CAUSE) == cause
        assert len(bench.kernel.jobs) == ran
        bench.memory.bad = {}
        bench.kernel.outcomes.clear()
        await bench.call(bench.driver.enable)
        bench.kernel.outcomes.append((5, _FINE))
        await bench.call(bench.driver.run, random_arguments(), _WAIT_PS)


@cocotb.test(timeout_time=2 * _TIMEOUT_US, timeout_unit="us")
async def disabled_at_any_time(dut: Any) -> None:
    """CC.en cleared after any number of cycles: no completion follows, all is new, next jobs are right."""
    bench = await bench_of(dut)
    for cycles in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 80, 110, 150, 200, 250, 300, 400):
        bench.pause(0.3 * (cycles % 2))
        bench.kernel.drain_cycles = 5 * (cycles % 60)
        bench.kernel.outcomes.extend([(60, _FINE), (60, random_fault())])
        await bench.call(bench.driver.submit, random_arguments(), random_arguments())
        await ClockCycles(dut.clk, cycles)
        await bench.write(qr.CC, 0)
        while qr.CSTS.unpack(await bench.read(qr.CSTS))["rdy"]:
            pass
        assert dut.kernel_busy.value == 0
        writes = len(bench.memory.writes)
        bench.kernel.outcomes.clear()
        assert await bench.read(qr.CSTS) == 0
        assert await bench.read(qr.SQ_HEAD) == qr.SQ_HEAD.reset
        assert await bench.read(qr.CQ_TAIL) == qr.CQ_TAIL.reset
        assert await bench.read(qr.SQ_TAIL_DOORBELL) == await bench.read(qr.CQ_HEAD_DOORBELL) == 0
        await ClockCycles(dut.clk, 300)
        assert len(bench.memory.writes) == writes
        await bench.call(bench.driver.enable)
        for _ in range(2):
            bench.kernel.outcomes.append((10, _FINE))
            await bench.call(bench.driver.run, random_arguments(), _WAIT_PS)


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def enabled_before_it_has_stopped(dut: Any) -> None:
    """CC.en cleared and set at once: the job is dropped all the same, and the queues begin at index 0."""
    bench = await bench_of(dut)
    bench.kernel.drain_cycles = 200
    await bench.call(bench.driver.submit, random_arguments())
    await ClockCycles(dut.clk, 400)
    await bench.write(qr.CC, 0)
    await bench.write(qr.CC, 1)
    await ClockCycles(dut.clk, 600)
    assert await bench.read(qr.CSTS) == qr.CSTS.mask("rdy")
    assert await bench.read(qr.SQ_HEAD) == 0
    assert bench.kernel.resets == 1
    await bench.call(bench.driver.enable)
    bench.kernel.outcomes.append((10, _FINE))
    await bench.call(bench.driver.run, random_arguments(), _WAIT_PS)


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def masked_messages_wait(dut: Any) -> None:
    """Vector mask and function mask keep one message pending; without MSI-X the host polls."""
    bench = await bench_of(dut)
    polling = QueueDriver(bench.access, SQ, CQ, interrupts=False)
    await bench.call(polling.enable)

    async def two_jobs() -> None:
        bench.kernel.outcomes.extend([(5, _FINE), (5, _FINE)])
        await bench.call(polling.submit, random_arguments(), random_arguments())
        for _ in range(2):
            await bench.call(polling.wait, _WAIT_PS)
        await ClockCycles(dut.clk, 100)

    await two_jobs()
    sent = bench.access.messages
    assert sent
    await bench.write(qr.MSIX_CONTROL, 1)
    await two_jobs()
    assert (bench.access.messages, await bench.read(qr.MSIX_PENDING)) == (sent, 1)
    await bench.write(qr.MSIX_CONTROL, 0)
    assert (await bench.read(qr.MSIX_PENDING), bench.access.messages) == (0, sent + 1)
    dut.msix_function_mask.value = 1
    await two_jobs()
    assert (bench.access.messages, await bench.read(qr.MSIX_PENDING)) == (sent + 1, 1)
    dut.msix_function_mask.value = 0
    assert (await bench.read(qr.MSIX_PENDING), bench.access.messages) == (0, sent + 2)
    await bench.write(qr.MSIX_CONTROL, 1)
    await two_jobs()
    dut.msix_enable.value = 0
    assert await bench.read(qr.MSIX_PENDING) == 0
    await bench.write(qr.MSIX_CONTROL, 0)
    await two_jobs()
    assert bench.access.messages == sent + 2


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def registers_of_bar0(dut: Any) -> None:
    """Every register keeps its rules; the kernel's page can be read while jobs run, and not be written."""
    bench = await bench_of(dut)
    assert await bench.read(qr.CAP) == qr.CONSTANTS[qr.CAP]
    for register, value in ((qr.ASQ, 0x123456789000), (qr.MSIX_ADDRESS, 0x3_0000_0004), (qr.MSIX_DATA, 77)):
        old = await bench.read(register)
        await bench.write(register, value)
        assert await bench.read(register) == value
        await bench.write(register, old)
    for register in (qr.CAP, qr.VS, qr.CSTS, qr.SQ_HEAD, qr.MSIX_PENDING):
        old = await bench.read(register)
        await bench.write(register, ~0)
        assert await bench.read(register) == old
    kernel = qr.KERNEL_PAGE * WINDOW_BYTES
    design = reg.identity_values(get_design("tiny"))
    await bench.call(bench.driver.submit, random_arguments())
    for _ in range(3):
        for register, value in design.items():
            assert await bench.host.bar.read_dword(kernel + register.offset) == value
    await bench.host.bar.write_dword(kernel + reg.RESET.offset, 1)
    await bench.host.bar.write_dword(kernel + reg.HEADS.offset, 3)
    assert await bench.host.bar.read_dword(kernel + reg.HEADS.offset) == bench.kernel.jobs[0][reg.HEADS]
    assert bench.kernel.resets == 0
    # 12 bytes are no register.
    await bench.host.bar.write(8, bytes(12))
    assert await bench.read(qr.DROPPED_REQUESTS) == 1
    assert await bench.read(qr.REFUSED_REQUESTS) == 0
