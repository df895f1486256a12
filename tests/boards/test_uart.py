"""The serial line alone: bytes of faster and slower senders, glitches, missing stop bits."""

from itertools import pairwise

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from nearkv_hdl.top.uart import UartReceiver, UartTransmitter

SENT = bytes([0x00, 0xFF, 0x55, 0xAA, 0x01, 0x80, 0xA5])


def simulate(dut, *testbenches, limit):
    async def end(ctx):
        for _ in range(limit):
            await ctx.tick()
        raise TimeoutError(f"not done in {limit} cycles")

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(end, background=True)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    simulator.run()


async def take(ctx, port, count, received):
    while len(received) < count:
        _, _, valid, payload = await ctx.tick().sample(port.valid, port.payload)
        if valid:
            received.append(payload)


@pytest.mark.parametrize("divisor", [4, 5, 16, 25])
def test_what_is_sent_arrives_a_byte_every_interval(divisor):
    sender, receiver = UartTransmitter(divisor), UartReceiver(divisor)
    loop = Module()
    loop.submodules += sender, receiver
    loop.d.comb += receiver.i.eq(sender.o)
    received, taken_at, now = [], [], [0]

    async def send(ctx):
        ctx.set(sender.i.valid, 1)
        for byte in SENT:
            ctx.set(sender.i.payload, byte)
            ready = 0
            while not ready:
                _, _, ready = await ctx.tick().sample(sender.i.ready)
                now[0] += 1
            taken_at.append(now[0])
        ctx.set(sender.i.valid, 0)

    async def receive(ctx):
        await take(ctx, receiver.o, len(SENT), received)

    simulate(loop, send, receive, limit=12 * divisor * len(SENT))
    assert bytes(received) == SENT
    assert {later - earlier for earlier, later in pairwise(taken_at)} == {sender.interval}


async def drive(ctx, line, bits, cycles_per_bit):
    """Bits of a sender with a clock of its own: edges fall on the nearest cycle."""
    done = 0.0
    at = 0
    for bit in bits:
        ctx.set(line, bit)
        done += cycles_per_bit
        await ctx.tick().repeat(round(done) - at)
        at = round(done)


def bits_of(byte, stop=1):
    return [0, *(byte >> bit & 1 for bit in range(8)), stop]


@pytest.mark.parametrize("deviation", [-0.04, 0, 0.04])
def test_a_line_four_per_cent_off(deviation):
    receiver = UartReceiver(16)
    received = []

    async def send(ctx):
        for byte in SENT:
            await drive(ctx, receiver.i, bits_of(byte), 16 * (1 + deviation))

    async def receive(ctx):
        await take(ctx, receiver.o, len(SENT), received)

    simulate(receiver, send, receive, limit=3000)
    assert bytes(received) == SENT


@pytest.mark.parametrize("divisor", [4, 5, 16])
def test_latencies(divisor):
    sender, receiver = UartTransmitter(divisor), UartReceiver(divisor)
    loop = Module()
    loop.submodules += sender, receiver
    loop.d.comb += receiver.i.eq(sender.o)
    found = {}

    async def watch(ctx):
        ctx.set(sender.i.payload, 0x5A)
        ctx.set(sender.i.valid, 1)
        for cycle in range(12 * divisor):
            _, _, line, valid = await ctx.tick().sample(sender.o, receiver.o.valid)
            ctx.set(sender.i.valid, 0)
            if not line:
                found.setdefault("edge", cycle)
            if valid:
                found.setdefault("byte", cycle)

    simulate(loop, watch, limit=13 * divisor)
    assert found == {"edge": sender.latency, "byte": sender.latency + receiver.latency}


def test_a_glitch_and_a_missing_stop_bit_are_no_bytes():
    receiver = UartReceiver(16)
    received = []

    async def send(ctx):
        ctx.set(receiver.i, 0)
        await ctx.tick().repeat(3)
        ctx.set(receiver.i, 1)
        await ctx.tick().repeat(40)
        await drive(ctx, receiver.i, [*bits_of(0x3C, stop=0), *[1] * 12], 16)
        await drive(ctx, receiver.i, bits_of(0x42), 16)

    async def receive(ctx):
        await take(ctx, receiver.o, 1, received)

    simulate(receiver, send, receive, limit=1000)
    assert received == [0x42]
