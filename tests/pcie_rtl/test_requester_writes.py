"""WriteRequester with any strobes: what is one run is written, in the packets of the golden splitter."""

import random

import pytest
from amaranth.sim import Simulator

from nearkv_hdl.bus.axi import BURST_INCR, PAGE_BYTES, Response
from nearkv_hdl.pcie.completion_room import CompletionRoom
from nearkv_hdl.pcie.dword_memory import DwordMemory
from nearkv_hdl.pcie.formats import BEAT_BYTES, RQ_DESCRIPTOR, RequestType
from nearkv_hdl.pcie.requester import MemoryRequester
from nearkv_hdl.pcie.tags import TagPool
from nearkv_hdl.pcie.write_packer import WritePacker
from nearkv_hdl.pcie.write_requester import WriteRequester
from nearkv_hdl.top.kernel_core import memory_port
from nearkv_sim.golden.pcie_requests import MemoryRequest, split_write, strobed_run

FULL = (1 << BEAT_BYTES) - 1
BASE = 5 << 40
BURSTS = 40
PAUSE = 0.25


def strobes_of(rng, beats):
    """Strobes of a burst: one run as a rule, sometimes with a gap within a beat, or between beats."""
    first, last = rng.randrange(BEAT_BYTES), rng.randrange(BEAT_BYTES)
    strobes = [FULL] * beats
    strobes[0] &= FULL << first
    strobes[-1] &= (2 << last) - 1
    kind = rng.randrange(6)
    place = rng.randrange(beats)
    if kind == 0:
        strobes[place] &= ~(1 << rng.randrange(BEAT_BYTES))
    elif kind == 1:
        strobes[place] = 0
    elif kind == 2:
        strobes[place] = rng.getrandbits(BEAT_BYTES)
    return strobes


def burst(rng):
    """Address, identifier and beats of a burst within a page."""
    place = rng.randrange(PAGE_BYTES // BEAT_BYTES)
    beats = rng.randrange(1, min(20, PAGE_BYTES // BEAT_BYTES - place) + 1)
    address = BASE + rng.randrange(4) * PAGE_BYTES + place * BEAT_BYTES + rng.randrange(BEAT_BYTES)
    return address, rng.randrange(2), [(s, rng.randbytes(BEAT_BYTES)) for s in strobes_of(rng, beats)]


def parsed(packet):
    """A packet's beats as the request that it is."""
    words = b"".join(data.to_bytes(BEAT_BYTES, "little") for data, _ in packet)
    last_lane, first_be, last_be = packet[-1][1]
    words = words[: (len(packet) - 1) * BEAT_BYTES + 4 * (last_lane + 1)]
    descriptor = RQ_DESCRIPTOR.from_bits(int.from_bytes(words[:16], "little"))
    assert descriptor.request_type == RequestType.MEMORY_WRITE
    address, dwords = 4 * descriptor.dword_address, descriptor.dwords
    assert len(words) == 16 + 4 * dwords
    enables = [0xF] * dwords
    enables[0] = first_be
    if dwords > 1:
        enables[-1] = last_be
    payload = {address + at: byte for at, byte in enumerate(words[16:]) if enables[at // 4] >> at % 4 & 1}
    return MemoryRequest(address, dwords, first_be, last_be, payload)


@pytest.mark.parametrize("max_payload", range(4))
def test_packets_and_responses(max_payload):
    rng = random.Random(max_payload)
    bursts = [burst(rng) for _ in range(BURSTS)]
    unit = WriteRequester()
    bus, packet = unit.s_axi, unit.packet
    requests, responses, current = [], [], []

    async def addresses(ctx):
        for address, identifier, beats in bursts:
            while rng.random() < PAUSE:
                await ctx.tick()
            ctx.set(bus.awaddr, address)
            ctx.set(bus.awid, identifier)
            ctx.set(bus.awlen, len(beats) - 1)
            ctx.set(bus.awvalid, 1)
            await ctx.tick().until(bus.awready)
            ctx.set(bus.awvalid, 0)

    async def data(ctx):
        for _, _, beats in bursts:
            for strobes, content in beats:
                while rng.random() < PAUSE:
                    await ctx.tick()
                ctx.set(bus.wdata, int.from_bytes(content, "little"))
                ctx.set(bus.wstrb, strobes)
                ctx.set(bus.wvalid, 1)
                await ctx.tick().until(bus.wready)
                ctx.set(bus.wvalid, 0)

    async def packets(ctx):
        ctx.set(unit.max_payload, max_payload)
        ctx.set(unit.bus_master_enable, 1)
        ctx.set(bus.awsize, (BEAT_BYTES - 1).bit_length())
        ctx.set(bus.awburst, BURST_INCR)
        inside = False
        cycles_left = 20 * sum(len(beats) for *_, beats in bursts)
        while len(responses) < BURSTS:
            cycles_left -= 1
            assert cycles_left, f"{len(responses)} of {BURSTS} bursts were answered in time"
            ready, bready = rng.random() >= PAUSE, rng.random() >= PAUSE
            ctx.set(packet.ready, ready)
            ctx.set(bus.bready, bready)
            _, _, valid, beat, bvalid, bid, bresp = await ctx.tick().sample(
                packet.valid, packet.payload, bus.bvalid, bus.bid, bus.bresp
            )
            assert valid or not inside, "a packet has a gap"
            if bvalid and bready:
                responses.append((bid, bresp, len(requests)))
            if valid and ready:
                assert bool(beat.first) == (not current)
                current.append((beat.data, (beat.last_lane, beat.first_be, beat.last_be)))
                if beat.last:
                    requests.append(parsed(current))
                    current.clear()
            inside = bool(current)

    expected, answers = [], []
    for address, identifier, beats in bursts:
        run, is_whole = strobed_run(address, beats)
        expected += split_write(run, 128 << max_payload)
        answers.append((identifier, Response.OKAY if is_whole else Response.SLVERR, len(expected)))
    assert {response for _, response, _ in answers} == {Response.OKAY, Response.SLVERR}

    simulator = Simulator(unit)
    simulator.add_clock(1e-9)
    for testbench in (addresses, data, packets):
        simulator.add_testbench(testbench)
    simulator.run()
    assert requests == expected
    assert [answer[:2] for answer in responses] == [answer[:2] for answer in answers]
    # A response comes when its burst's last packet has been taken, or later.
    assert all(seen >= sent for (*_, seen), (*_, sent) in zip(responses, answers, strict=True))


def test_the_port_is_the_kernels():
    assert MemoryRequester().signature.members["s_axi"].signature == memory_port(BEAT_BYTES).flip()


def test_arguments_are_refused():
    with pytest.raises(ValueError, match="tags is 3; allowed: a power of two from 2 to 256"):
        TagPool(3)
    with pytest.raises(ValueError, match="time_bits is 10; allowed: from 11"):
        TagPool(256, 10)
    with pytest.raises(ValueError, match="completion_headers is 63; allowed: from 64"):
        CompletionRoom(63, 32768)
    with pytest.raises(ValueError, match="completion_bytes is 5119; allowed: from 5120"):
        MemoryRequester(completion_bytes=5119)
    with pytest.raises(ValueError, match="rows is 16; allowed: a power of two from 32"):
        WritePacker(16)
    with pytest.raises(ValueError, match="rows is 3; allowed: a power of two from 2"):
        DwordMemory(3)
