"""CC.en cleared and set again at once, while the queue engine waits for memory: the job is dropped."""

import pytest
from amaranth.sim import Simulator

from nearkv_hdl.bus.axi import Response
from nearkv_hdl.pcie.queue_engine import QUIET_CYCLES, QueueEngine
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.queue_entries import pack_submission

ENTRIES = {
    "good": pack_submission(
        opcode=0x81, block_count=1, key_lines=1, query_lines=1, result_lines=1, head_dim=64, heads=1
    ),
    "refused": bytes(64),
}
SQ, CQ, MESSAGE_ADDRESS = 0x1000, 0x2000, 0x8004
MOST_CYCLES = 4 * QUIET_CYCLES


def run(testbench):
    """Simulate an engine beside a kernel that takes every access and answers it in the next cycle."""
    dut = QueueEngine()
    accesses = []

    async def kernel(ctx):
        request = dut.kernel.request
        ctx.set(request.ready, 1)
        async for _, reset, valid, payload in ctx.tick().sample(request.valid, request.payload):
            if reset:
                continue
            if valid:
                accesses.append(payload.offset)
            ctx.set(dut.kernel.done, valid)

    async def host(ctx):
        await testbench(ctx, dut, accesses)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(kernel, background=True)
    simulator.add_testbench(host)
    simulator.run()


async def until(ctx, signal):
    for _ in range(MOST_CYCLES):
        if ctx.get(signal):
            return
        await ctx.tick()
    raise AssertionError(f"{signal!r} is 0 for {MOST_CYCLES} cycles")


async def enable(ctx, dut):
    ctx.set(dut.aqa, {"asqs": 3, "acqs": 3})
    ctx.set(dut.asq, SQ)
    ctx.set(dut.acq, CQ)
    ctx.set(dut.cc, {"en": 1})
    await until(ctx, dut.csts.rdy)


async def ring(ctx, dut):
    """One submission; returns when its read is under way and not answered."""
    bus = dut.m_axi
    for ready in (bus.arready, bus.awready, bus.wready):
        ctx.set(ready, 1)
    ctx.set(dut.sq_tail_doorbell, {"index": 1})
    await until(ctx, bus.arvalid)
    assert ctx.get(bus.araddr) == SQ
    await ctx.tick()


async def toggle(ctx, dut):
    """CC.en is 0 for as short as QueueController allows; the doorbells follow it."""
    ctx.set(dut.cc, {"en": 0})
    ctx.set(dut.sq_tail_doorbell, {"index": 0})
    await ctx.tick().repeat(3)
    ctx.set(dut.cc, {"en": 1})


async def cycles_to_stop(ctx, dut):
    """Cycles to CSTS.rdy = 0, while nothing is written."""
    for cycle in range(MOST_CYCLES):
        if not ctx.get(dut.csts.rdy):
            return cycle
        assert not ctx.get(dut.m_axi.awvalid), "a completion of a job that was dropped"
        await ctx.tick()
    raise AssertionError("CSTS.rdy does not fall: CC.en = 0 was forgotten")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("response", [Response.OKAY, Response.SLVERR])
@pytest.mark.parametrize("held_cycles", [0, 1, 100])
def test_a_stop_while_an_entry_is_held_up(entry, response, held_cycles):
    async def testbench(ctx, dut, accesses):
        bus = dut.m_axi
        await enable(ctx, dut)
        await ring(ctx, dut)
        await toggle(ctx, dut)
        for _ in range(held_cycles):
            assert ctx.get(dut.csts.rdy), "something of the device is on the bus"
            await ctx.tick()
        ctx.set(bus.rdata, int.from_bytes(ENTRIES[entry], "little"))
        ctx.set(bus.rresp, response)
        ctx.set(bus.rvalid, 1)
        await ctx.tick()
        ctx.set(bus.rvalid, 0)
        assert await cycles_to_stop(ctx, dut) >= QUIET_CYCLES
        # No register was written but the first one and the kernel's reset; CC.en = 1 counts from now on.
        assert accesses in ([], [reg.GIER.offset, reg.RESET.offset])
        await ctx.tick()
        assert ctx.get(dut.sq_head.index) == ctx.get(dut.cq_tail.index) == 0
        assert ctx.get(dut.csts.rdy)
        assert not ctx.get(dut.csts.cfs)
        await ring(ctx, dut)

    run(testbench)


async def post(ctx, dut):
    """One entry that is refused, up to the write of its completion."""
    bus = dut.m_axi
    await enable(ctx, dut)
    ctx.set(dut.msix_enable, 1)
    await ring(ctx, dut)
    ctx.set(bus.rvalid, 1)
    await ctx.tick()
    ctx.set(bus.rvalid, 0)
    await until(ctx, bus.awvalid)
    assert ctx.get(bus.awaddr) == CQ
    await ctx.tick()


async def answer_late(ctx, dut):
    """The response to a write, long after CC.en was toggled; CSTS.rdy waits for it."""
    await toggle(ctx, dut)
    await ctx.tick().repeat(2 * QUIET_CYCLES)
    assert ctx.get(dut.csts.rdy), "a write is on the bus"
    await answer(ctx, dut)
    assert await cycles_to_stop(ctx, dut) >= QUIET_CYCLES
    for _ in range(QUIET_CYCLES):
        await ctx.tick()
        assert not ctx.get(dut.m_axi.awvalid), "a message of a job before CC.en was cleared"


async def answer(ctx, dut):
    ctx.set(dut.m_axi.bvalid, 1)
    await ctx.tick()
    ctx.set(dut.m_axi.bvalid, 0)


def test_a_completion_on_its_way_is_still_posted_but_not_its_message():
    async def testbench(ctx, dut, _):
        await post(ctx, dut)
        await answer_late(ctx, dut)

    run(testbench)


def test_a_message_on_its_way_is_waited_for():
    async def testbench(ctx, dut, _):
        ctx.set(dut.msix_address, MESSAGE_ADDRESS)
        await post(ctx, dut)
        await answer(ctx, dut)
        await until(ctx, dut.m_axi.awvalid)
        assert ctx.get(dut.m_axi.awaddr) == MESSAGE_ADDRESS
        await ctx.tick()
        await answer_late(ctx, dut)

    run(testbench)
