"""cocotb bench of Completer: BAR0 behind the integrated block's model, registers as a memory of words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteSlave, AxiResp
from cocotbext.pcie.core.tlp import CplStatus, TlpAttr, TlpTc, TlpType
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us.tlp import ReqType, Tlp_us, tlp_type_to_req_type

from nearkv_hdl.bus.axi import LITE_DATA_BYTES
from nearkv_hdl.spec.queue_registers import BAR_BYTES
from nearkv_sim.benches.axi_harness import Memory, random_pauses
from nearkv_sim.benches.pcie_native_host import PcieHost, RawRequests, request

_TIMEOUT_US = 400
_BASE = 0xC000_0000  # where a BAR could lie
_ENABLES = range(16)


class CompleterBench:
    """Completer between a host and a memory of words.

    Attributes:
        counts: pulses of `dropped` and `refused`.

    """

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.host = PcieHost(dut, dut.clk, dut.rst, requests=False)
        self.memory = Memory(LITE_DATA_BYTES, random.randbytes(BAR_BYTES), base=0)
        bus = AxiLiteBus.from_prefix(dut, "m_axil")
        self.slave = AxiLiteSlave(bus, dut.clk, dut.rst, self.memory)
        self.counts = {"dropped": 0, "refused": 0}

    async def start(self) -> None:
        """Enumerate, count."""
        await self.host.start()
        cocotb.start_soon(self._count())

    async def _count(self) -> None:
        while True:
            await RisingEdge(self.dut.clk)
            await ReadOnly()
            for name in self.counts:
                self.counts[name] += int(getattr(self.dut, name).value)

    def pause(self, share: float) -> None:
        """Let every interface pause at random."""
        self.host.pause(share)
        read, write = self.slave.read_if, self.slave.write_if
        channels = (read.ar_channel, read.r_channel, write.aw_channel, write.w_channel, write.b_channel)
        for channel in channels:
            channel.set_pause_generator(random_pauses(share))


async def bench_of(dut: Any) -> CompleterBench:
    """A bench whose device is enumerated."""
    bench = CompleterBench(dut)
    await bench.start()
    return bench


def ranges() -> Iterator[tuple[int, int]]:
    """Every alignment and size of 1 to 8 bytes within two dwords, somewhere in the BAR, in any order."""
    found = [(first, nbytes) for first in range(4) for nbytes in range(1, 9 - first)]
    for first, nbytes in random.sample(found, len(found)):
        yield 4 * random.randrange(BAR_BYTES // 4 - 1) + first, nbytes


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def every_size_and_alignment(dut: Any) -> None:
    """Writes change their bytes and no others; reads give what is there."""
    bench = await bench_of(dut)
    for share in (0, 0.4):
        bench.pause(share)
        for offset, nbytes in ranges():
            expected = bytearray(bench.memory.content)
            data = random.randbytes(nbytes)
            expected[offset : offset + nbytes] = data
            await bench.host.bar.write(offset, data)
            assert await bench.host.bar.read(offset, nbytes) == data
            assert bench.memory.content == expected, (offset, nbytes)
    assert bench.counts == {"dropped": 0, "refused": 0}


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def byte_enables_with_gaps(dut: Any) -> None:
    """All 16 byte enables of one dword, pairs of those of two: strobes, byte counts, addresses."""
    bench = await bench_of(dut)
    raw = RawRequests(bench.host)
    bench.pause(0.3)
    pairs = [(first, 0, 1) for first in _ENABLES]
    pairs += [(first, last, 2) for first in _ENABLES[1:] for last in _ENABLES[1:]]
    for tag, (first, last, dwords) in enumerate(random.sample(pairs, 80) + pairs[:1]):
        address = _BASE + 4 * random.randrange(BAR_BYTES // 4 - 1)
        offset = address - _BASE
        data = random.randbytes(4 * dwords)
        enabled = [first >> lane & 1 for lane in range(4)] + [last >> lane & 1 for lane in range(4)]
        expected = bytearray(bench.memory.content)
        for lane, byte in enumerate(data):
            if enabled[lane]:
                expected[offset + lane] = byte
        fields = {"first_be": first, "last_be": last, "tag": tag, "requester_id": PcieId(3, 5, 1)}
        await raw.send(request(TlpType.MEM_WRITE, address, dwords, data, **fields))
        await raw.send(request(TlpType.MEM_READ, address, dwords, **fields, tc=TlpTc.TC2, attr=TlpAttr.RO))
        answer = (await raw.settle(tag + 1))[tag]
        assert bench.memory.content == expected
        assert (answer.tag, answer.requester_id) == (tag, PcieId(3, 5, 1))
        assert (answer.tc, answer.attr, answer.status) == (TlpTc.TC2, TlpAttr.RO, CplStatus.SC)
        lanes = [lane for lane, enable in enumerate(enabled) if enable] or [0]
        assert answer.lower_address == (address + lanes[0]) % 128, (first, last)
        assert answer.byte_count == lanes[-1] - lanes[0] + 1, (first, last)
        words = [
            expected[offset + at : offset + at + 4] if any(enabled[at : at + 4]) else bytes(4)
            for at in range(0, 4 * dwords, 4)
        ]
        assert answer.data == b"".join(words)


def bad_requests() -> list[tuple[Tlp_us, bool]]:
    """Requests that are not served, and whether they are posted."""
    # The library has no name for a locked read and messages on CQ.
    bad = [
        (request(TlpType.MEM_READ, _BASE + 64, 3), False),
        (request(TlpType.MEM_READ, _BASE + 64, 1024), False),
        (request(TlpType.MEM_READ, _BASE + 64, bar_id=2), False),
        (request(TlpType.MEM_READ, _BASE + BAR_BYTES - 4, 2), False),
        (request(TlpType.MEM_READ_LOCKED, _BASE + 64), False),
        (request(TlpType.IO_READ, _BASE + 64), False),
        (request(TlpType.IO_WRITE, _BASE + 64, 1, b"1234"), False),
        (request(TlpType.FETCH_ADD, _BASE + 64, 1, b"1234"), False),
        (request(TlpType.SWAP, _BASE + 64, 2, b"12345678"), False),
        (request(TlpType.CAS, _BASE + 64, 4, bytes(16)), False),
        (request(TlpType.MEM_WRITE, _BASE + 64, 3, bytes(12)), True),
        (request(TlpType.MEM_WRITE, _BASE + 64, 12, bytes(48)), True),
        (request(TlpType.MEM_WRITE, _BASE + 64, 13, bytes(52)), True),
        (request(TlpType.MEM_WRITE, _BASE + 64, 100, bytes(400)), True),
        (request(TlpType.MEM_WRITE, _BASE + 64, 1, bytes(4), bar_id=1), True),
        (request(TlpType.MEM_WRITE, _BASE + BAR_BYTES - 4, 2, bytes(8)), True),
        (request(TlpType.MEM_WRITE, _BASE + 64, 1, bytes(4), discontinue=True), True),
        (request(TlpType.MEM_WRITE, _BASE + 64, 40, bytes(160), discontinue=True), True),
        (request(TlpType.CAS, _BASE + 64, 4, bytes(16), discontinue=True), True),
    ]
    random.shuffle(bad)
    return bad


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def requests_that_are_not_served(dut: Any) -> None:
    """UR for those that want an answer, silence for the others; each is counted, none touches a register."""
    bench = await bench_of(dut)
    raw = RawRequests(bench.host)
    bench.pause(0.3)
    before = bytes(bench.memory.content)
    bad = bad_requests()
    for tag, (tlp, _) in enumerate(bad):
        tlp.tag = tag
        await raw.send(tlp)
    await raw.send(request(TlpType.MEM_READ, _BASE + 64, tag=255))
    answered = [tlp for tlp, posted in bad if not posted]
    answers = await raw.settle(len(answered) + 1)
    assert [answer.tag for answer in answers] == [*(tlp.tag for tlp in answered), 255]
    for tlp, answer in zip(answered, answers, strict=False):
        assert (answer.status, answer.length) == (CplStatus.UR, 0)
        kind = tlp_type_to_req_type[tlp.fmt_type]
        locked = kind is ReqType.MEM_READ_LOCKED
        assert (answer.fmt_type is TlpType.CPL_LOCKED) == locked
        memory = locked or kind is ReqType.MEM_READ
        assert answer.byte_count == (4 * tlp.length if memory else 4)
        assert answer.lower_address == (tlp.address % 128 if memory else 0)
    assert answers[-1].data == before[64:68]
    assert bench.memory.content == before
    assert bench.counts == {"dropped": len(bad) - len(answered), "refused": len(answered)}


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def registers_that_fail(dut: Any) -> None:
    """A read of a failing register gives Completer Abort, a write of one is counted; then all is well."""
    bench = await bench_of(dut)
    raw = RawRequests(bench.host)
    bench.memory.bad = {64: AxiResp.SLVERR}
    for kind, address, dwords, data in (
        (TlpType.MEM_READ, 64, 1, b""),
        (TlpType.MEM_READ, 60, 2, b""),
        (TlpType.MEM_WRITE, 64, 1, b"abcd"),
        (TlpType.MEM_WRITE, 64, 2, b"abcdefgh"),
        (TlpType.MEM_READ, 68, 1, b""),
    ):
        await raw.send(request(kind, _BASE + address, dwords, data))
    first, second, last = await raw.settle(3)
    assert [first.status, second.status] == [CplStatus.CA, CplStatus.CA]
    assert last.data == b"efgh"
    assert bench.counts == {"dropped": 2, "refused": 2}


@cocotb.test(timeout_time=_TIMEOUT_US, timeout_unit="us")
async def order_is_kept(dut: Any) -> None:
    """Reads between many writes see all those before them and none behind them."""
    bench = await bench_of(dut)
    raw = RawRequests(bench.host)
    bench.pause(0.3)
    for tag in range(30):
        await raw.send(request(TlpType.MEM_WRITE, _BASE + 8, 1, bytes([tag, 0, 0, 0])))
        await raw.send(request(TlpType.MEM_READ, _BASE + 8, tag=tag, first_be=0 if tag % 3 == 2 else 15))
    answers = await raw.settle(30, 4000)
    assert [answer.tag for answer in answers] == list(range(30))
    assert [answer.data[0] for answer in answers] == [0 if tag % 3 == 2 else tag for tag in range(30)]
