"""cocotb bench of QueueUnit: entries good and bad, full queues, bad memory, stops."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles, Timer
from cocotbext.axi import AxiResp

from nearkv.device.queue_driver_access import submission_of
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.queue_entries import ARGUMENT_FIELDS, COMPLETION_BYTES, SUBMISSION_BYTES, Completion
from nearkv_sim.benches.pcie_queues_harness import CQ, MESSAGE_ADDRESS, SQ
from nearkv_sim.benches.pcie_queues_jobs import (
    FINE,
    TIMEOUT_US,
    WAIT_PS,
    bench_of,
    error_of_wait,
    random_arguments,
    random_fault,
    spoilt,
)
from nearkv_sim.benches.pcie_queues_model import arguments_of, check_entry, completion_of


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
async def jobs_in_order(dut: Any) -> None:
    """Batches of good and bad entries over many rounds: arguments, completions, messages behind them."""
    bench = await bench_of(dut)
    sq_head, phase, tail = 0, 1, 0
    for batch in range(16):
        bench.pause(0.3 * (batch % 2))
        entries = [submission_of(random_arguments(), random.getrandbits(16)) for _ in range(1 + batch % 3)]
        entries = [spoilt(entry) if random.random() < 0.4 else entry for entry in entries]
        faults = [random_fault() if check_entry(entry)[0] == 0 else FINE for entry in entries]
        good = [index for index, entry in enumerate(entries) if check_entry(entry)[0] == 0]
        bench.kernel.outcomes.extend((random.randrange(100), faults[index]) for index in good)
        bench.kernel.jobs.clear()
        bench.memory.writes.clear()
        await bench.call(bench.driver.submit_entries, *entries)
        places = []
        for entry, fault in zip(entries, faults, strict=True):
            completion = await bench.call(bench.driver.wait, WAIT_PS)
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


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
async def a_full_completion_queue_holds_back(dut: Any) -> None:
    """Of six jobs three run while the host takes no completion, one more for every one it takes."""
    bench = await bench_of(dut)
    await bench.call(bench.driver.disable)
    await bench.write(qr.AQA, qr.AQA.pack(asqs=7, acqs=3))
    await bench.write(qr.CC, 1)
    bench.kernel.outcomes.extend([(20, FINE)] * 6)
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


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
async def errors_of_the_memory(dut: Any) -> None:
    """An entry that cannot be read, a completion that cannot be written."""
    bench = await bench_of(dut)
    for address, cause, ran in ((SQ, qr.FatalCause.FETCH, 0), (CQ, qr.FatalCause.POST, 1)):
        bench.memory.bad = {address: AxiResp.SLVERR}
        bench.kernel.outcomes.append((5, FINE))
        bench.kernel.jobs.clear()
        await bench.call(bench.driver.submit, random_arguments())
        assert f"FATAL_CAUSE is {cause.name}" in await error_of_wait(bench)
        assert await bench.read(qr.FATAL_CAUSE) == cause
        assert len(bench.kernel.jobs) == ran
        bench.memory.bad = {}
        bench.kernel.outcomes.clear()
        await bench.call(bench.driver.enable)
        bench.kernel.outcomes.append((5, FINE))
        await bench.call(bench.driver.run, random_arguments(), WAIT_PS)


@cocotb.test(timeout_time=2 * TIMEOUT_US, timeout_unit="us")
async def disabled_at_any_time(dut: Any) -> None:
    """CC.en cleared after any number of cycles: no completion follows, all is new, next jobs are right."""
    bench = await bench_of(dut)
    for cycles in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 80, 110, 150, 200, 250, 300, 400):
        bench.pause(0.3 * (cycles % 2))
        bench.kernel.drain_cycles = 5 * (cycles % 60)
        bench.kernel.outcomes.extend([(60, FINE), (60, random_fault())])
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
            bench.kernel.outcomes.append((10, FINE))
            await bench.call(bench.driver.run, random_arguments(), WAIT_PS)


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
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
    bench.kernel.outcomes.append((10, FINE))
    await bench.call(bench.driver.run, random_arguments(), WAIT_PS)
