"""cocotb bench of MemoryRequester: every length and alignment, every split, pauses, nothing else touched.

Parameters: `tags`, `completion_headers` and `completion_bytes` as the component was built.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import cocotb

from nearkv_hdl.bus.axi import PAGE_BYTES
from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_sim.benches.pcie_requester_harness import (
    HOST_BASE,
    HOST_BYTES,
    RequesterBench,
    beats_of,
)
from nearkv_sim.golden.pcie_requests import split_read, split_write

_TIMEOUT_MS = 5
_GUARD = 0xA5


async def bench_of(dut: Any) -> RequesterBench:
    """A bench after enumeration."""
    bench = RequesterBench(dut)
    await bench.start()
    return bench


def _bursts(address: int, nbytes: int) -> list[tuple[int, int]]:
    """Address and bytes of the bursts that the manager makes: it cuts at pages."""
    end = address + nbytes
    cuts = range(address // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES, end, PAGE_BYTES)
    return [(first, after - first) for first, after in zip([address, *cuts], [*cuts, end], strict=True)]


async def check_read(bench: RequesterBench, address: int, nbytes: int, max_read: int) -> None:
    """Read; compare data and requests."""
    bench.reads.clear()
    answer = await bench.axi.read(address, nbytes)
    assert answer.resp == 0, (hex(address), nbytes)
    assert bytes(answer.data) == bench.content(address, nbytes), (hex(address), nbytes)
    expected = [
        request
        for first, size in _bursts(address, nbytes)
        for request in split_read(first, beats_of(first, size), 128 << max_read)
    ]
    assert bench.reads == expected, (hex(address), nbytes)


async def check_write(bench: RequesterBench, address: int, nbytes: int, max_payload: int) -> None:
    """Write; compare the host's whole memory and the requests."""
    bench.writes.clear()
    before = bytearray(bench.memory.mem[:])
    written = random.randbytes(nbytes)
    answer = await bench.axi.write(address, written)
    assert answer.resp == 0, (hex(address), nbytes)
    expected = [
        request
        for first, size in _bursts(address, nbytes)
        for request in split_write(
            {at: written[at - address] for at in range(first, first + size)}, 128 << max_payload
        )
    ]
    while len(bench.writes) < len(expected):
        await bench.cycles(10)
    assert bench.writes == expected, (hex(address), nbytes)
    before[address - HOST_BASE : address - HOST_BASE + nbytes] = written
    assert bytes(bench.memory.mem[:]) == before, (hex(address), nbytes)


def _around_a_page() -> list[tuple[int, int]]:
    """Every length up to a beat's and two more, and every offset from as far before a page to 2 behind."""
    lengths, offsets = range(1, BEAT_BYTES + 3), range(-BEAT_BYTES - 2, 3)
    pairs = [(offset, random.choice(lengths)) for offset in offsets]
    pairs += [(random.choice(offsets), length) for length in lengths]
    return [(HOST_BASE + PAGE_BYTES + offset, length) for offset, length in pairs]


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def short_reads_around_a_page(dut: Any) -> None:
    """Reads of a few bytes, at full rate and with pauses everywhere."""
    bench = await bench_of(dut)
    await bench.set_sizes(0, 0)
    for index, (address, nbytes) in enumerate(_around_a_page()):
        bench.pause(0.3 * (index % 2))
        await check_read(bench, address, nbytes, 0)
    await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def short_writes_around_a_page_touch_nothing_else(dut: Any) -> None:
    """Writes of a few bytes, each checked with all that lies around it."""
    bench = await bench_of(dut)
    bench.memory.mem[:] = bytes([_GUARD]) * HOST_BYTES
    await bench.set_sizes(0, 0)
    for index, (address, nbytes) in enumerate(_around_a_page()):
        bench.pause(0.3 * (index % 2))
        await check_write(bench, address, nbytes, 0)
    await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def every_size_of_payload_and_request(dut: Any) -> None:
    """Long transfers at every maximum payload and read request size, in pieces and out of order."""
    bench = await bench_of(dut)
    for max_payload, max_read in itertools.product(range(3), range(6)):
        bench.completer.pieces = bool(max_read % 2)
        bench.completer.spread_ns = 400 * (max_payload % 2)
        bench.pause(random.choice((0, 0.3)))
        await bench.set_sizes(max_payload, max_read, boundary_128=max_payload == 2)
        nbytes = random.randrange(PAGE_BYTES, 2 * PAGE_BYTES)
        await check_read(bench, HOST_BASE + random.randrange(PAGE_BYTES), nbytes, max_read)
        nbytes = random.randrange(600, 1500)
        address = HOST_BASE + PAGE_BYTES + random.randrange(-700, 100)
        await check_write(bench, address, nbytes, max_payload)
    await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def reads_and_writes_at_once(dut: Any) -> None:
    """Many reads of one half under way while the other half is written."""
    bench = await bench_of(dut)
    await bench.set_sizes(1, 2)
    half = HOST_BYTES // 2
    bench.completer.pieces, bench.completer.spread_ns = True, 1000
    for pause in (0, 0.3):
        bench.pause(pause)
        before = bytes(bench.memory.mem[:])
        places = [(random.randrange(half - 900), random.randrange(1, 900)) for _ in range(16)]
        written = random.randbytes(half - 77)
        write = cocotb.start_soon(bench.axi.write(HOST_BASE + half + 33, written))
        reads = [cocotb.start_soon(bench.axi.read(HOST_BASE + at, nbytes)) for at, nbytes in places]
        for (at, nbytes), read in zip(places, reads, strict=True):
            answer = await read
            assert answer.resp == 0
            assert bytes(answer.data) == before[at : at + nbytes], (at, nbytes)
        assert (await write).resp == 0
        await bench.cycles(300)
        expected = before[: half + 33] + written + before[half + 33 + len(written) :]
        assert bytes(bench.memory.mem[:]) == expected
    await bench.check_all_free()
