"""cocotb bench of QueueUnit: doorbells, queues that cannot be, messages, registers of BAR0."""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.triggers import ClockCycles

from nearkv.device.queue_driver import QueueDriver
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.register_map import WINDOW_BYTES
from nearkv_sim.benches.pcie_queues_harness import CQ, SQ
from nearkv_sim.benches.pcie_queues_jobs import (
    FINE,
    TIMEOUT_US,
    WAIT_PS,
    bench_of,
    error_of_wait,
    random_arguments,
)


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
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
        bench.kernel.outcomes.append((600, FINE))
        jobs = len(bench.kernel.jobs)
        await bench.call(bench.driver.submit, random_arguments())
        await ClockCycles(dut.clk, 300)
        await bench.write(doorbell, index)
        assert qr.CSTS.unpack(await bench.read(qr.CSTS)) == {"rdy": 1, "cfs": 1}
        assert await bench.read(qr.FATAL_CAUSE) == cause
        await bench.write(doorbell, 0)  # the first cause stays
        await ClockCycles(dut.clk, 1000)
        completion = await bench.call(bench.driver.wait, WAIT_PS)
        assert not completion.failed
        await bench.call(bench.driver.submit, random_arguments())
        assert f"FATAL_CAUSE is {cause.name}" in await error_of_wait(bench)
        assert len(bench.kernel.jobs) == jobs + 1
        await bench.call(bench.driver.enable)
        bench.kernel.outcomes.append((5, FINE))
        await bench.call(bench.driver.run, random_arguments(), WAIT_PS)


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
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
    bench.kernel.outcomes.append((5, FINE))
    await bench.call(bench.driver.run, random_arguments(), WAIT_PS)


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
async def masked_messages_wait(dut: Any) -> None:
    """Vector mask and function mask keep one message pending; without MSI-X the host polls."""
    bench = await bench_of(dut)
    polling = QueueDriver(bench.access, SQ, CQ, interrupts=False)
    await bench.call(polling.enable)

    async def two_jobs() -> None:
        bench.kernel.outcomes.extend([(5, FINE), (5, FINE)])
        await bench.call(polling.submit, random_arguments(), random_arguments())
        for _ in range(2):
            await bench.call(polling.wait, WAIT_PS)
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


@cocotb.test(timeout_time=TIMEOUT_US, timeout_unit="us")
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
