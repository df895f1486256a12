"""cocotb bench of NativePcie: jobs whose descriptors, codes, keys and results lie in host memory.

Parameter: `design`, one of `kernel_designs.DESIGNS` with a bus of 64 bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles

from nearkv.device.queue_driver_access import submission_of
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.queue_entries import Completion, GenericStatus, StatusType
from nearkv_sim.benches.kernel_bad_jobs import BEFORE_STREAMING
from nearkv_sim.benches.kernel_harness import COUNTED
from nearkv_sim.benches.kernel_jobs import Job
from nearkv_sim.benches.pcie_native_harness import ENTRIES, NativeBench
from nearkv_sim.benches.pcie_queues_model import check_entry

_TIMEOUT_MS = 1
_WAIT_PS = 10**9


async def bench_of(dut: Any) -> NativeBench:
    """A bench whose queues are enabled."""
    bench = NativeBench(dut)
    await bench.start()
    return bench


def outcome(completion: Completion) -> tuple[int, int, int, int]:
    """As NativeBench.expect gives it."""
    return completion.status_type, completion.status_code, completion.address_line, completion.token


async def run(bench: NativeBench, job: Job) -> Completion:
    """One job by the driver."""
    await bench.call(bench.driver.submit, job.arguments)
    completion: Completion = await bench.call(bench.driver.wait, _WAIT_PS)
    return completion


async def run_well(bench: NativeBench, job: Job) -> None:
    """A good job: memory, counters and order of writes are right."""
    expected = bench.expect(job)
    bench.writes.clear()
    assert outcome(await run(bench, job)) == expected == (StatusType.GENERIC, GenericStatus.SUCCESS, 0, 0)
    assert bytes(bench.data.mem) == bench.model.content
    for register in COUNTED:
        assert await bench.counter(register) == bench.model.read(register), register.name
    await bench.settle()
    bench.check_order()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def jobs_of_host_memory(dut: Any) -> None:
    """Every number of heads, head_dim and format: all of host memory as the card model has it."""
    bench = await bench_of(dut)
    formats = [(KeyFormat.INT8,), (KeyFormat.INT4,), tuple(KeyFormat)]
    for index in range(6):
        bench.pause((0, 0.3)[index % 2])
        heads = index % bench.design.query_group + 1
        head_dim = bench.design.head_dims[index % len(bench.design.head_dims)]
        await run_well(bench, bench.job(1 + index % 4 * 2, heads, head_dim, formats=formats[index % 3]))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_read_that_the_host_refuses(dut: Any) -> None:
    """UR on list, codes, keys or header fails the job with the address; the next job is right."""
    bench = await bench_of(dut)
    for part in ("keys", "query", "list", "header"):
        job = bench.job(4, 2)
        address, _, block = job.range_of(part, bench.design)
        token = 0 if part == "list" else int(job.descriptors["first_token"][block])
        bench.refused = {address}
        completion = await run(bench, job)
        assert outcome(completion) == (StatusType.KERNEL, reg.ErrorCode.BUS_ERROR, address // 64, token), part
        bench.refused = set()
        await run_well(bench, bench.job(3, 2))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_read_that_nobody_answers(dut: Any) -> None:
    """The completion timeout fails the job and is counted; the next job is right."""
    bench = await bench_of(dut)
    timeouts = qr.bar_offset(qr.COMPLETION_TIMEOUTS)
    assert await bench.host.bar.read_dword(timeouts) == 0
    job = bench.job(3, 1)
    address, _, block = job.range_of("keys", bench.design)
    bench.lost = {address}
    token = int(job.descriptors["first_token"][block])
    completion = await run(bench, job)
    assert outcome(completion) == (StatusType.KERNEL, reg.ErrorCode.BUS_ERROR, address // 64, token)
    assert await bench.host.bar.read_dword(timeouts) == 1
    bench.lost = set()
    await run_well(bench, bench.job(3, 2))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def jobs_that_are_wrong(dut: Any) -> None:
    """Whatever an entry can hold fails as on the card model, with no write but completion and message."""
    bench = await bench_of(dut)
    tried = 0
    for bend in BEFORE_STREAMING:
        job = bench.job(5, 2)
        try:
            bend(job, bench.design)
            entry = submission_of(job.arguments, 0)
        except (KeyError, ValueError):
            continue  # no entry says that
        bench.lay_out(job)
        if check_entry(entry)[0] is not GenericStatus.SUCCESS:
            continue  # refused before the kernel sees it, see the bench of the queues
        tried += 1
        before = bytes(bench.data.mem)
        expected = bench.expect(job)
        bench.writes.clear()
        assert outcome(await run(bench, job)) == expected
        assert expected[0] == StatusType.KERNEL
        assert bytes(bench.data.mem) == before
        bench.renew_model()
        await bench.settle()
        bench.check_order()
        assert len(bench.writes) == 2
    assert tried >= 20
    await run_well(bench, bench.job(3, 2))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def several_jobs_at_once(dut: Any) -> None:
    """Two batches by one doorbell each, a bad job among good ones; the queues wrap between them."""
    bench = await bench_of(dut)
    for _ in range(2):
        # They share memory, so that one after the other is prepared as the device would find it.
        first = bench.job(2, 1)
        bad = replace(first, arguments=first.arguments | {reg.HEAD_DIM: 65})
        jobs = [first, bad, first]
        expected = [
            bench.expect(first),
            (StatusType.KERNEL, reg.ErrorCode.HEAD_DIM, 0, 0),
            bench.expect(first),
        ]
        await bench.call(bench.driver.submit, *(job.arguments for job in jobs))
        assert bench.driver.free == ENTRIES - 1 - len(jobs)
        found = [outcome(await bench.call(bench.driver.wait, _WAIT_PS)) for _ in jobs]
        assert found == expected
        assert bytes(bench.data.mem) == bench.model.content


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def disabled_in_the_middle(dut: Any) -> None:
    """CC.en cleared while a job reads and writes: nothing is written afterwards, the next job is right."""
    bench = await bench_of(dut)
    for cycles in (0, 50, 150, 250, 350, 450, 550, 700, 900, 1200):
        bench.pause(0.3 * (cycles % 100 == 50))
        job = bench.job(6, 2, formats=(KeyFormat.INT8,))
        await bench.call(bench.driver.submit, job.arguments)
        await ClockCycles(dut.user_clk, cycles)
        await bench.call(bench.driver.disable)
        writes = len(bench.writes)
        await bench.settle()
        assert len(bench.writes) == writes, cycles
        await bench.call(bench.driver.enable)
        await run_well(bench, bench.job(3, 1))
    status = await bench.host.bar.read_dword(qr.bar_offset(qr.CSTS))
    assert status == qr.CSTS.mask("rdy")
