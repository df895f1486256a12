"""Two managers on one port: every burst comes out whole, and answers go back to who asked."""

import random

import pytest
from amaranth.sim import Simulator

from nearkv_hdl.top.native_pcie_share import PortShare

BUS_BYTES = 4
CYCLES = 3000
CHANNELS = {"first": 1, "second": 2}  # a mark in the upper address bits of each manager


def chance(share):
    return random.random() < share


class Manager:
    """Asks at random, in spells, checks that answers are its own and in order."""

    def __init__(self, port, mark, quiet):
        self.port, self.mark, self.quiet = port, mark, quiet
        self.reads, self.writes, self.data = [], [], []
        self.done = 0

    async def drive(self, ctx):
        port = self.port
        ctx.set(port.rready, 1)
        ctx.set(port.bready, 1)
        for cycle in range(CYCLES):
            asks = cycle // self.quiet % 2 == self.mark % 2 and cycle < CYCLES - 400
            if not ctx.get(port.arvalid) and asks and chance(0.3):
                ctx.set(port.araddr, self.mark << 32 | random.getrandbits(16))
                ctx.set(port.arlen, random.randrange(4))
                ctx.set(port.arvalid, 1)
            if not ctx.get(port.awvalid) and not self.data and asks and chance(0.3):
                beats = random.randrange(4)
                ctx.set(port.awaddr, self.mark << 32 | random.getrandbits(16))
                ctx.set(port.awlen, beats)
                ctx.set(port.awvalid, 1)
                self.data = [self.mark << 16 | beat for beat in range(beats + 1)]
            if self.data:
                ctx.set(port.wdata, self.data[0])
                ctx.set(port.wlast, len(self.data) == 1)
            ctx.set(port.wvalid, bool(self.data))
            *_, ar, aw, w, r, b, araddr, awaddr, rdata, rlast = await ctx.tick().sample(
                port.arvalid & port.arready,
                port.awvalid & port.awready,
                port.wvalid & port.wready,
                port.rvalid,
                port.bvalid,
                port.araddr,
                port.awaddr,
                port.rdata,
                port.rlast,
            )
            if ar:
                self.reads.append(araddr)
                ctx.set(port.arvalid, 0)
            if aw:
                self.writes.append(awaddr)
                ctx.set(port.awvalid, 0)
            if w:
                self.data.pop(0)
            if r:
                assert rdata == self.reads[0] & 0xFFFF_FFFF, "an answer of another burst"
                if rlast:
                    self.reads.pop(0)
                    self.done += 1
            if b:
                assert self.writes, "a response that nobody waits for"
                self.writes.pop(0)
                self.done += 1


async def memory(ctx, dut, log):
    """Answers reads with the address, in order, at random times; takes writes whole."""
    bus = dut.m_axi
    reads, writes, data = [], [], []
    for _ in range(CYCLES):
        ctx.set(bus.arready, chance(0.5))
        ctx.set(bus.awready, chance(0.5))
        ctx.set(bus.wready, chance(0.5))
        if reads:
            address, left = reads[0]
            ctx.set(bus.rdata, address & 0xFFFF_FFFF)
            ctx.set(bus.rlast, left == 0)
        ctx.set(bus.rvalid, bool(reads) and chance(0.5))
        complete = bool(writes) and len(data) > writes[0][1]
        ctx.set(bus.bvalid, complete and chance(0.5))
        *_, ar, aw, w, r, b, araddr, arlen, awaddr, awlen, wdata, busy = await ctx.tick().sample(
            bus.arvalid & bus.arready,
            bus.awvalid & bus.awready,
            bus.wvalid & bus.wready,
            bus.rvalid & bus.rready,
            bus.bvalid & bus.bready,
            bus.araddr,
            bus.arlen,
            bus.awaddr,
            bus.awlen,
            bus.wdata,
            dut.first_busy,
        )
        marks = {address >> 32 for address, _ in reads} | {address >> 32 for address, _ in writes}
        assert busy or CHANNELS["first"] not in marks
        if ar:
            reads.append((araddr, arlen))
            assert len({address >> 32 for address, _ in reads}) == 1, "reads of both under way"
        if aw:
            writes.append((awaddr, awlen))
            assert len({address >> 32 for address, _ in writes}) == 1, "writes of both under way"
        if w:
            data.append(wdata)
        if r:
            address, left = reads.pop(0)
            if left:
                reads.insert(0, (address, left - 1))
        if b:
            address, beats = writes.pop(0)
            burst, data[: beats + 1] = data[: beats + 1], []
            assert burst == [address >> 32 << 16 | beat for beat in range(beats + 1)]
            log.append(address >> 32)


@pytest.mark.parametrize("quiet", [7, 60])
def test_bursts_and_answers_stay_with_their_manager(quiet):
    random.seed(quiet)
    dut = PortShare(BUS_BYTES)
    managers = [Manager(getattr(dut, name), mark, quiet) for name, mark in CHANNELS.items()]
    log = []
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    for manager in managers:
        simulator.add_testbench(manager.drive)

    async def answer(ctx):
        await memory(ctx, dut, log)

    simulator.add_testbench(answer)
    simulator.run()
    for manager in managers:
        assert manager.done > 100
        assert not manager.reads
        assert not manager.writes
    assert set(log) == set(CHANNELS.values())
