"""cocotb bench of NativePcie: the trials of the fault matrix that only the native mode's queues can have.

Each test reports, under its name, how it ended and what was not as before afterwards.
Parameter: `design`, one of `kernel_designs.DESIGNS` with a bus of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import cocotb
from cocotb.utils import get_sim_time

from nearkv.device.errors import DeviceError
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.queue_entries import Completion, GenericStatus, StatusType, pack_submission
from nearkv_hdl.spec.register_map import Register
from nearkv_sim.benches.harness import report
from nearkv_sim.benches.pcie_native_harness import ENTRIES, NativeBench

_TIMEOUT_MS = 2
_WAIT_PS = 10**8
_STILL_ZERO = (
    *(qr.DROPPED_REQUESTS, qr.REFUSED_REQUESTS, qr.COMPLETION_TIMEOUTS),
    *(qr.UNEXPECTED_COMPLETIONS, qr.LATE_COMPLETIONS),
)
Provocation = Callable[[NativeBench], Awaitable[None]]


async def trial(dut: Any, name: str, provoke: Provocation) -> None:
    """Provoke, and report the end; then new queues, a good job, and the counters of the bus."""
    bench = NativeBench(dut)
    await bench.start()
    start_ps = get_sim_time("ps")
    ending, cause = "success", ""
    try:
        await provoke(bench)
    except DeviceError as error:
        ending, cause = "error", str(error)
    elapsed_ps = int(get_sim_time("ps") - start_ps)
    await bench.call(bench.driver.enable)
    left_over = []
    if not await runs_well(bench):
        left_over.append("the next job is wrong")
    counts = {register.name: await read(bench, register) for register in _STILL_ZERO}
    left_over += [f"{name} is {count}" for name, count in counts.items() if count]
    if (status := await read(bench, qr.CSTS)) != qr.CSTS.mask("rdy"):
        left_over.append(f"CSTS is {status:#x}")
    if bench.driver.free != ENTRIES - 1:
        left_over.append(f"{bench.driver.free} entries are free")
    outcome = {"ending": ending, "cause": cause, "elapsed_ps": elapsed_ps, "left_over": left_over}
    report(**{name: outcome})


async def read(bench: NativeBench, register: Register) -> int:
    """A register of BAR0, 32 bits wide."""
    value: int = await bench.host.bar.read_dword(qr.bar_offset(register))
    return value


async def store(bench: NativeBench, register: Register, value: int) -> None:
    """Write one."""
    await bench.host.bar.write_dword(qr.bar_offset(register), value)


async def runs_well(bench: NativeBench, jobs: int = 1) -> bool:
    """Whether jobs submitted at once succeed, and leave memory as the card model does."""
    some = [bench.job(2, 1)] * jobs
    expected = [bench.expect(job) for job in some]
    await bench.call(bench.driver.submit, *(job.arguments for job in some))
    completions: list[Completion] = [await bench.call(bench.driver.wait, _WAIT_PS) for _ in some]
    found = [(c.status_type, c.status_code, c.address_line, c.token) for c in completions]
    good = (StatusType.GENERIC, GenericStatus.SUCCESS, 0, 0)
    return found == expected == [good] * jobs and bytes(bench.data.mem) == bench.model.content


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def entries_one_by_one_around_the_queue(dut: Any) -> None:
    """Twice around, one job at a time."""

    async def provoke(bench: NativeBench) -> None:
        for index in range(2 * ENTRIES + 1):
            assert await runs_well(bench), index

    await trial(dut, "entries_one_by_one_around_the_queue", provoke)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def full_queues_around(dut: Any) -> None:
    """As many jobs at once as fit, three times, so that batches lie across the end of both queues."""

    async def provoke(bench: NativeBench) -> None:
        for index in range(3):
            assert await runs_well(bench, ENTRIES - 1), index

    await trial(dut, "full_queues_around", provoke)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def an_entry_with_an_unknown_opcode(dut: Any) -> None:
    """Its completion says so."""

    async def provoke(bench: NativeBench) -> None:
        await bench.call(bench.driver.submit_entries, pack_submission(opcode=0x7F, command_id=9))
        completion: Completion = await bench.call(bench.driver.wait, _WAIT_PS)
        assert completion.status is GenericStatus.INVALID_OPCODE
        raise DeviceError(f"entry refused: {completion.status.name}")

    await trial(dut, "an_entry_with_an_unknown_opcode", provoke)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_completion_queue_off_a_page(dut: Any) -> None:
    """The device does not take it; the driver, which would not ask for it, says why."""

    async def provoke(bench: NativeBench) -> None:
        await bench.call(bench.driver.disable)
        await store(bench, qr.ACQ, 64)
        await store(bench, qr.CC, qr.CC.pack(en=1))
        await bench.call(bench.driver.submit, bench.job(2, 1).arguments)
        await bench.call(bench.driver.wait, _WAIT_PS)

    await trial(dut, "a_completion_queue_off_a_page", provoke)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_tail_beyond_the_queue(dut: Any) -> None:
    """Fatal, as the wait for the next job finds."""

    async def provoke(bench: NativeBench) -> None:
        await store(bench, qr.SQ_TAIL_DOORBELL, ENTRIES)
        await bench.call(bench.driver.submit, bench.job(2, 1).arguments)
        await bench.call(bench.driver.wait, _WAIT_PS)

    await trial(dut, "a_tail_beyond_the_queue", provoke)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_head_beyond_what_was_posted(dut: Any) -> None:
    """Fatal, as the wait for the next job finds."""

    async def provoke(bench: NativeBench) -> None:
        await store(bench, qr.CQ_HEAD_DOORBELL, 2)
        await bench.call(bench.driver.submit, bench.job(2, 1).arguments)
        await bench.call(bench.driver.wait, _WAIT_PS)

    await trial(dut, "a_head_beyond_what_was_posted", provoke)
