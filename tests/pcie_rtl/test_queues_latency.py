"""Latencies that the components' docstrings give, in cycles without stalls."""

from amaranth.sim import Simulator

from nearkv_hdl.pcie.completer import Completer
from nearkv_hdl.pcie.controller import QueueController
from nearkv_hdl.pcie.formats import CQ_DESCRIPTOR, CQ_USER, RequestType
from nearkv_hdl.pcie.queue_engine import QUIET_CYCLES, QueueEngine
from nearkv_hdl.pcie.queue_kernel_port import KernelPort
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.queue_entries import pack_submission

GOOD = pack_submission(
    opcode=0x81, block_count=1, key_lines=1, query_lines=1, result_lines=1, head_dim=64, heads=1
)


def run(dut, testbench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


async def cycles_until(ctx, signal, most=200):
    """Edges until the signal is 1, counted from now."""
    for cycles in range(most):
        if ctx.get(signal):
            return cycles
        await ctx.tick()
    raise AssertionError(f"not within {most} cycles")


async def send(ctx, dut, **fields):
    """One request of a beat; returns right behind the edge that takes it."""
    header = CQ_DESCRIPTOR.const({"dwords": 1, **fields})
    user = CQ_USER.const({"first_be": [0xF, 0]})
    ctx.set(dut.s_axis_cq.tdata, header.as_value().value)
    ctx.set(dut.s_axis_cq.tuser, user.as_value().value)
    ctx.set(dut.s_axis_cq.tlast, 1)
    ctx.set(dut.s_axis_cq.tvalid, 1)
    await ctx.tick()
    ctx.set(dut.s_axis_cq.tvalid, 0)


def test_completer():
    dut = Completer(14)
    found = {}

    async def testbench(ctx):
        ctx.set(dut.m_axis_cc.tready, 1)
        await send(ctx, dut, request_type=RequestType.MEMORY_READ)
        found["read"] = 1 + await cycles_until(ctx, dut.m_axil.arvalid)
        ctx.set(dut.m_axil.arready, 1)
        await ctx.tick()
        ctx.set(dut.m_axil.rvalid, 1)
        found["answer"] = await cycles_until(ctx, dut.m_axis_cc.tvalid)
        ctx.set(dut.m_axil.rvalid, 0)
        await ctx.tick()
        await send(ctx, dut, request_type=RequestType.MEMORY_READ, bar_id=1)
        found["refused"] = 1 + await cycles_until(ctx, dut.m_axis_cc.tvalid)
        await ctx.tick()
        await send(ctx, dut, request_type=RequestType.MEMORY_WRITE)
        found["write"] = 1 + await cycles_until(ctx, dut.m_axil.awvalid)
        assert ctx.get(dut.m_axil.wvalid)

    run(dut, testbench)
    assert found == {"read": 3, "answer": 2, "refused": 2, "write": 3}


def test_controller():
    dut = QueueController()
    bus = dut.s_axil
    found = {}

    async def testbench(ctx):
        ctx.set(bus.rready, 1)
        ctx.set(bus.araddr, qr.bar_offset(qr.VS))
        ctx.set(bus.arvalid, 1)
        found["read"] = await cycles_until(ctx, bus.rvalid)
        assert ctx.get(bus.rdata) == qr.QUEUE_VERSION
        await ctx.tick()
        found["interval"] = 1 + await cycles_until(ctx, bus.rvalid)

    run(dut, testbench)
    assert found == {"read": 2, "interval": 3}


def test_kernel_port():
    dut = KernelPort()
    found = {}

    async def testbench(ctx):
        ctx.set(dut.engine.request.valid, 1)
        found["request"] = await cycles_until(ctx, dut.m_axil.arvalid)
        ctx.set(dut.m_axil.arready, 1)
        await ctx.tick()
        ctx.set(dut.m_axil.rvalid, 1)
        found["done"] = await cycles_until(ctx, dut.engine.done)
        await ctx.tick()
        ctx.set(dut.m_axil.rvalid, 0)
        found["next"] = 1 + await cycles_until(ctx, dut.m_axil.arvalid)

    run(dut, testbench)
    assert found == {"request": 1, "done": 0, "next": 2}


def test_engine():
    dut = QueueEngine()
    bus, kernel = dut.m_axi, dut.kernel
    found = {}

    async def testbench(ctx):
        ctx.set(dut.aqa, {"asqs": 3, "acqs": 3})
        ctx.set(dut.msix_enable, 1)
        ctx.set(dut.cc, {"en": 1})
        await cycles_until(ctx, dut.csts.rdy)
        await ctx.tick().repeat(5)
        # The doorbell's register has its new value one cycle after its write.
        ctx.set(dut.sq_tail_doorbell, {"index": 1})
        found["fetch"] = 1 + await cycles_until(ctx, bus.arvalid)
        for ready in (bus.arready, bus.awready, bus.wready, kernel.request.ready):
            ctx.set(ready, 1)
        await ctx.tick()
        ctx.set(bus.rdata, int.from_bytes(GOOD, "little"))
        ctx.set(bus.rvalid, 1)
        found["run"] = await cycles_until(ctx, kernel.request.valid)
        ctx.set(bus.rvalid, 0)
        ctx.set(dut.interrupt, 1)
        last = 0
        for _ in range(1000):
            if ctx.get(bus.awvalid):
                break
            if ctx.get(kernel.request.valid):
                await ctx.tick()
                ctx.set(kernel.done, 1)
                last = 0
            await ctx.tick()
            ctx.set(kernel.done, 0)
            last += 1
        found["complete"] = last
        await ctx.tick()
        ctx.set(bus.bvalid, 1)
        await ctx.tick()
        ctx.set(bus.bvalid, 0)
        found["message"] = 1 + await cycles_until(ctx, bus.awvalid)
        ctx.set(bus.bvalid, 1)
        await ctx.tick().repeat(5)
        ctx.set(dut.cc, {"en": 0})
        found["stop"] = await cycles_until(ctx, ~dut.csts.rdy)

    run(dut, testbench)
    assert found == {"fetch": 2, "run": 2, "complete": 4, "message": 2, "stop": QUIET_CYCLES + 1}
