"""cocotb bench of an AXI reader and writer on one port, against a memory that nobody here wrote.

Parameters: `bus_bytes`; `full`: every length at every offset around a page, instead of a sample. The `dut`
has the streams `read` and `write` (commands, with their windows as `<name>_window_base` and `_bytes`),
`data_in`, `data_out`, `read_status`, `write_status`, and the bus `m_axi`.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import cocotb
from cocotbext.axi import AxiResp

from nearkv_hdl.bus.axi import PAGE_BYTES
from nearkv_hdl.bus.transfer import TransferCode
from nearkv_sim.benches.axi_harness import FINE, MEMORY_BASE, MEMORY_BYTES, Command, PortBench
from nearkv_sim.benches.harness import parameters

_TIMEOUT_MS = 5  # 500,000 cycles
_GUARD = 0xA5


def _around_page(bus_bytes: int, page: int) -> list[Command]:
    """Every length from 0 to two more than a beat, at every offset from as far before a page to 2 behind."""
    boundary = MEMORY_BASE + page * PAGE_BYTES
    lengths = range(bus_bytes + 3)
    offsets = range(-bus_bytes - 2, 3)
    if parameters()["full"]:
        pairs = list(itertools.product(offsets, lengths))
    else:
        pairs = [(offset, random.choice(lengths)) for offset in offsets]
        pairs += [(random.choice(offsets), length) for length in lengths]
    return [(boundary + offset, length) for offset, length in pairs]


async def bench_of(dut: Any) -> PortBench:
    """A bench after its reset."""
    bench = PortBench(dut)
    await bench.start()
    return bench


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def reads_around_a_page(dut: Any) -> None:
    """Short reads across a page's end, at full rate and with pauses everywhere."""
    bench = await bench_of(dut)
    for pause in (0, 0.3):
        bench.pause(pause)
        commands = _around_page(bench.bus_bytes, 1)
        statuses, _, _ = await bench.run(commands, pause=pause)
        assert statuses == [FINE] * len(commands)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def writes_around_a_page_touch_nothing_else(dut: Any) -> None:
    """Short writes across a page's end, one by one, each checked with all that lies around it."""
    bench = await bench_of(dut)
    for index, command in enumerate(_around_page(bench.bus_bytes, 1)):
        pause = 0.3 * (index % 2)
        bench.pause(pause)
        bench.memory.content[:] = bytes([_GUARD]) * MEMORY_BYTES
        await bench.check_writes([command], pause=pause)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def long_transfers_of_both_directions(dut: Any) -> None:
    """Reads of one half and writes of the other, many bursts each, with more and more pauses."""
    bench = await bench_of(dut)
    half = MEMORY_BYTES // 2
    for pause in (0, 0.2, 0.6):
        bench.pause(pause)
        reads: list[Command] = []
        writes: list[Command] = []
        for _ in range(4):
            length = random.randrange(40 * bench.bus_bytes)
            reads.append((MEMORY_BASE + random.randrange(half - length), length))
        at = half
        while len(writes) < 4:
            at += random.randrange(100)
            length = random.randrange(20 * bench.bus_bytes)
            writes.append((MEMORY_BASE + at, length))
            at += length
        assert at <= MEMORY_BYTES
        await bench.check_writes(writes, reads=reads, pause=pause)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def errors_name_the_beat_and_drain(dut: Any) -> None:
    """Both errors at the first, a middle and the last beat of a read; other commands come out unharmed."""
    bench = await bench_of(dut)
    start, nbytes = MEMORY_BASE + PAGE_BYTES - 5, 45 * bench.bus_bytes + 9
    command, other = (start, nbytes), (MEMORY_BASE, 3 * bench.bus_bytes)
    beats = bench.beats(command)
    for response, index in itertools.product((AxiResp.SLVERR, AxiResp.DECERR), (0, 17, len(beats) - 1)):
        bench.pause(random.choice((0, 0.3)))
        # A later error of the other kind is not the first.
        later = AxiResp.DECERR if response == AxiResp.SLVERR else AxiResp.SLVERR
        bench.memory.bad = {beats[-1]: later} | {beats[index]: response}
        statuses, _, _ = await bench.run([other, command, other, (start, 0), other])
        failed = (TransferCode(response), max(beats[index], start))
        assert statuses == [FINE, failed, FINE, FINE, FINE]


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def write_errors_name_the_burst_and_drain(dut: Any) -> None:
    """Both errors in the first, a middle and the last burst of a write."""
    bench = await bench_of(dut)
    burst_bytes = 16 * bench.bus_bytes
    start, nbytes = MEMORY_BASE + burst_bytes - 3, 4 * burst_bytes + 7
    other = (MEMORY_BASE + PAGE_BYTES * 5, 3 * bench.bus_bytes)
    bursts = [start, *range(MEMORY_BASE + burst_bytes, start + nbytes, burst_bytes)]
    for response, index in itertools.product((AxiResp.SLVERR, AxiResp.DECERR), (0, 2, len(bursts) - 1)):
        bench.pause(random.choice((0, 0.3)))
        bad = bursts[index] // bench.bus_bytes * bench.bus_bytes
        bench.memory.bad = {bad: response}
        _, statuses, _ = await bench.run(writes=[other, (start, nbytes), other])
        assert statuses == [FINE, (TransferCode(response), bursts[index]), FINE]


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def nothing_outside_the_window_is_touched(dut: Any) -> None:
    """A window with odd edges: transfers up to its edges pass, one byte further is refused and drains."""
    bench = await bench_of(dut)
    base, nbytes = MEMORY_BASE + PAGE_BYTES + 3, 2 * PAGE_BYTES - 11
    bench.set_window("read", base, nbytes)
    bench.set_window("write", base, nbytes)
    inside = [(base, nbytes), (base, 1), (base + nbytes - 1, 1), (base + 7, 0), (0, 0)]
    outside = [
        *((base - 1, 1), (base - 1, nbytes), (base, nbytes + 1), (base + nbytes, 1), (base + 1, nbytes)),
        *((0, 1), ((1 << 64) - 1, 1), ((1 << 64) - 1, 2), (base + nbytes - 1, 1000)),
    ]
    commands = [*inside, *outside]
    random.shuffle(commands)
    refused = [(TransferCode.WINDOW, command[0]) if command in outside else FINE for command in commands]
    bench.memory.content[:] = bytes([_GUARD]) * MEMORY_BYTES
    statuses, _, _ = await bench.run(commands, refused_reads=outside)
    assert statuses == refused
    _, statuses, _ = await bench.run(writes=commands, pause=0.2)
    assert statuses == refused
    first = base - MEMORY_BASE
    guard = bytes([_GUARD])
    assert bench.memory.content[:first] == guard * first
    assert bench.memory.content[first + nbytes :] == guard * (MEMORY_BYTES - first - nbytes)
    assert bench.memory.content[first : first + nbytes] != guard * nbytes
    # The largest read of all is refused as fast as any other.
    statuses, _, _ = await bench.run([(base, (1 << 32) - 1)], refused_reads=[(base, (1 << 32) - 1)])
    assert statuses == [(TransferCode.WINDOW, base)]
