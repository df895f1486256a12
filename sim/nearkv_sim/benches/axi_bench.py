"""cocotb bench of an AXI reader and writer on one port, against a memory that nobody here wrote.

Parameters: `bus_bytes`; `full`: every length at every offset around a page, instead of a sample. The `dut`
has the streams `read` and `write` (commands, with their windows as `<name>_window_base` and `_bytes`),
`data_in`, `data_out`, `read_status`, `write_status`, and the bus `m_axi`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cocotb
from cocotbext.axi import AxiBus, AxiResp, AxiSlave

from nearkv_hdl.bus.axi import PAGE_BYTES
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_sim.benches.harness import StreamBench, parameters

_TIMEOUT_MS = 5  # 500,000 cycles
_MEMORY_BASE = (1 << 63) + 3 * PAGE_BYTES  # uses the top address bit
_MEMORY_BYTES = 8 * PAGE_BYTES
_GUARD = 0xA5
_COMMAND = command_layout(64, 32)
_STATUS = status_layout(64)
Command = tuple[int, int]  # address, bytes
Status = tuple[TransferCode, int]


@dataclass
class BadBeat(Exception):
    """What the memory answers at a bad address."""

    response: AxiResp


class Memory:
    """Memory behind cocotbext-axi's subordinate, with bad addresses.

    Attributes:
        content: bytes from _MEMORY_BASE on.
        bad: response by beat address.

    """

    def __init__(self, bus_bytes: int, content: bytes) -> None:
        self.bus_bytes = bus_bytes
        self.content = bytearray(content)
        self.bad: dict[int, AxiResp] = {}
        self.response = AxiResp.OKAY  # of the failure that is being reported

    def _offset(self, address: int, nbytes: int) -> int:
        offset = address - _MEMORY_BASE
        if not 0 <= offset <= len(self.content) - nbytes:
            raise IndexError(f"{nbytes} bytes at {address:#x} are outside the memory")
        if response := self.bad.get(address // self.bus_bytes * self.bus_bytes):
            self.response = response
            raise BadBeat(response)
        return offset

    async def read(self, address: int, nbytes: int) -> bytes:
        """One beat."""
        offset = self._offset(address, nbytes)
        return bytes(self.content[offset : offset + nbytes])

    async def write(self, address: int, data: bytes) -> None:
        """A run of strobed bytes."""
        offset = self._offset(address, len(data))
        self.content[offset : offset + len(data)] = data

    def report(self, channel: Any, field: str) -> None:
        """Let a response channel say which error it was: the subordinate itself knows only SLVERR."""
        send = channel.send

        async def send_response(transaction: Any) -> None:
            if getattr(transaction, field) != AxiResp.OKAY:
                setattr(transaction, field, self.response)
            await send(transaction)

        channel.send = send_response


def random_pauses(share: float) -> Iterator[bool]:
    """Whether a channel pauses, cycle by cycle, for that share of the cycles."""
    while True:
        yield random.random() < share


class PortBench:
    """Streams on one side of the port, memory on the other."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.bus_bytes: int = parameters()["bus_bytes"]
        self.streams = StreamBench(
            dut,
            inputs=("read", "write", "data_in"),
            outputs=("data_out", "read_status", "write_status"),
        )
        self.memory = Memory(self.bus_bytes, random.randbytes(_MEMORY_BYTES))
        slave = AxiSlave(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, self.memory)
        self.memory.report(slave.read_if.r_channel, "rresp")
        self.memory.report(slave.write_if.b_channel, "bresp")
        self.channels = [
            *(slave.read_if.ar_channel, slave.read_if.r_channel),
            *(slave.write_if.aw_channel, slave.write_if.w_channel, slave.write_if.b_channel),
        ]

    async def start(self) -> None:
        """Reset, with windows as large as the memory."""
        self.set_window("read", _MEMORY_BASE, _MEMORY_BYTES)
        self.set_window("write", _MEMORY_BASE, _MEMORY_BYTES)
        await self.streams.start()

    def set_window(self, name: str, base: int, nbytes: int) -> None:
        """Program a window."""
        getattr(self.dut, f"{name}_window_base").value = base
        getattr(self.dut, f"{name}_window_bytes").value = nbytes

    def pause(self, share: float) -> None:
        """Let every channel of the bus pause at random."""
        for channel in self.channels:
            channel.set_pause_generator(random_pauses(share))

    def beats(self, command: Command) -> list[int]:
        """Addresses of the beats of a command."""
        address, nbytes = command
        first = address // self.bus_bytes * self.bus_bytes
        return list(range(first, address + nbytes, self.bus_bytes)) if nbytes else []

    async def run(
        self,
        reads: Sequence[Command] = (),
        writes: Sequence[Command] = (),
        *,
        pause: float = 0,
        refused_reads: Sequence[Command] = (),
    ) -> tuple[list[Status], list[Status], bytes]:
        """Run commands of both directions at once, which must not overlap; check what was read.

        Returns the statuses of both and the bytes offered for writing, one command's behind the other's;
        bytes outside commands, in the lanes beside them, are random too.
        """
        before = bytes(self.memory.content)
        written = bytearray()
        beats_in = []
        for address, nbytes in writes:
            payload = random.randbytes(nbytes)
            written += payload
            start = address % self.bus_bytes
            count = len(self.beats((address, nbytes)))
            lanes = bytearray(random.randbytes(count * self.bus_bytes))
            lanes[start : start + nbytes] = payload
            beats_in += [
                int.from_bytes(lanes[at : at + self.bus_bytes], "little")
                for at in range(0, len(lanes), self.bus_bytes)
            ]
        expected = [
            (command, beat)
            for command in reads
            if command not in refused_reads
            for beat in self.beats(command)
        ]
        taken, _ = await self.streams.run(
            {
                "read": [_pack(command) for command in reads],
                "write": [_pack(command) for command in writes],
                "data_in": beats_in,
            },
            {"data_out": len(expected), "read_status": len(reads), "write_status": len(writes)},
            input_pause=pause,
            output_pause=pause,
        )
        for ((address, nbytes), beat), word in zip(expected, taken["data_out"], strict=True):
            end = address + nbytes
            keep = sum(1 << lane for lane in range(self.bus_bytes) if address <= beat + lane < end)
            last = beat + self.bus_bytes >= end
            width = 8 * self.bus_bytes
            assert word >> width == keep | last << self.bus_bytes, (hex(address), nbytes, hex(beat))
            if beat not in self.memory.bad:
                offset = beat - _MEMORY_BASE
                data = int.from_bytes(before[offset : offset + self.bus_bytes], "little")
                assert word & (1 << width) - 1 == data, (hex(address), nbytes, hex(beat))
        statuses = [[_status(word) for word in taken[f"{way}_status"]] for way in ("read", "write")]
        return statuses[0], statuses[1], bytes(written)


def _pack(command: Command) -> int:
    address, nbytes = command
    return int(_COMMAND.const({"address": address, "bytes": nbytes}).as_value().value)


def _status(word: int) -> Status:
    status = _STATUS.from_bits(word)
    return TransferCode(status.code), status.address


_FINE = (TransferCode.OKAY, 0)


def _around_page(bus_bytes: int, page: int) -> list[Command]:
    """Every length from 0 to two more than a beat, at every offset from as far before a page to 2 behind."""
    boundary = _MEMORY_BASE + page * PAGE_BYTES
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
        assert statuses == [_FINE] * len(commands)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def writes_around_a_page_touch_nothing_else(dut: Any) -> None:
    """Short writes across a page's end, one by one, each checked with all that lies around it."""
    bench = await bench_of(dut)
    for index, command in enumerate(_around_page(bench.bus_bytes, 1)):
        pause = 0.3 * (index % 2)
        bench.pause(pause)
        bench.memory.content[:] = bytes([_GUARD]) * _MEMORY_BYTES
        await _check_writes(bench, [command], pause=pause)


async def _check_writes(
    bench: PortBench, writes: Sequence[Command], *, reads: Sequence[Command] = (), pause: float = 0
) -> None:
    """Run commands that do not fail; compare the whole memory."""
    expected = bytearray(bench.memory.content)
    read_statuses, write_statuses, written = await bench.run(reads, writes, pause=pause)
    assert read_statuses == [_FINE] * len(reads)
    assert write_statuses == [_FINE] * len(writes)
    done = 0
    for address, nbytes in writes:
        offset = address - _MEMORY_BASE
        expected[offset : offset + nbytes] = written[done : done + nbytes]
        done += nbytes
    assert bench.memory.content == expected


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def long_transfers_of_both_directions(dut: Any) -> None:
    """Reads of one half and writes of the other, many bursts each, with more and more pauses."""
    bench = await bench_of(dut)
    half = _MEMORY_BYTES // 2
    for pause in (0, 0.2, 0.6):
        bench.pause(pause)
        reads: list[Command] = []
        writes: list[Command] = []
        for _ in range(4):
            length = random.randrange(40 * bench.bus_bytes)
            reads.append((_MEMORY_BASE + random.randrange(half - length), length))
        at = half
        while len(writes) < 4:
            at += random.randrange(100)
            length = random.randrange(20 * bench.bus_bytes)
            writes.append((_MEMORY_BASE + at, length))
            at += length
        assert at <= _MEMORY_BYTES
        await _check_writes(bench, writes, reads=reads, pause=pause)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def errors_name_the_beat_and_drain(dut: Any) -> None:
    """Both errors at the first, a middle and the last beat of a read; other commands come out unharmed."""
    bench = await bench_of(dut)
    start, nbytes = _MEMORY_BASE + PAGE_BYTES - 5, 45 * bench.bus_bytes + 9
    command, other = (start, nbytes), (_MEMORY_BASE, 3 * bench.bus_bytes)
    beats = bench.beats(command)
    for response, index in itertools.product((AxiResp.SLVERR, AxiResp.DECERR), (0, 17, len(beats) - 1)):
        bench.pause(random.choice((0, 0.3)))
        # A later error of the other kind is not the first.
        later = AxiResp.DECERR if response == AxiResp.SLVERR else AxiResp.SLVERR
        bench.memory.bad = {beats[-1]: later} | {beats[index]: response}
        statuses, _, _ = await bench.run([other, command, other, (start, 0), other])
        failed = (TransferCode(response), max(beats[index], start))
        assert statuses == [_FINE, failed, _FINE, _FINE, _FINE]


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def write_errors_name_the_burst_and_drain(dut: Any) -> None:
    """Both errors in the first, a middle and the last burst of a write."""
    bench = await bench_of(dut)
    burst_bytes = 16 * bench.bus_bytes
    start, nbytes = _MEMORY_BASE + burst_bytes - 3, 4 * burst_bytes + 7
    other = (_MEMORY_BASE + PAGE_BYTES * 5, 3 * bench.bus_bytes)
    bursts = [start, *range(_MEMORY_BASE + burst_bytes, start + nbytes, burst_bytes)]
    for response, index in itertools.product((AxiResp.SLVERR, AxiResp.DECERR), (0, 2, len(bursts) - 1)):
        bench.pause(random.choice((0, 0.3)))
        bad = bursts[index] // bench.bus_bytes * bench.bus_bytes
        bench.memory.bad = {bad: response}
        _, statuses, _ = await bench.run(writes=[other, (start, nbytes), other])
        assert statuses == [_FINE, (TransferCode(response), bursts[index]), _FINE]


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def nothing_outside_the_window_is_touched(dut: Any) -> None:
    """A window with odd edges: transfers up to its edges pass, one byte further is refused and drains."""
    bench = await bench_of(dut)
    base, nbytes = _MEMORY_BASE + PAGE_BYTES + 3, 2 * PAGE_BYTES - 11
    bench.set_window("read", base, nbytes)
    bench.set_window("write", base, nbytes)
    inside = [(base, nbytes), (base, 1), (base + nbytes - 1, 1), (base + 7, 0), (0, 0)]
    outside = [
        *((base - 1, 1), (base - 1, nbytes), (base, nbytes + 1), (base + nbytes, 1), (base + 1, nbytes)),
        *((0, 1), ((1 << 64) - 1, 1), ((1 << 64) - 1, 2), (base + nbytes - 1, 1000)),
    ]
    commands = [*inside, *outside]
    random.shuffle(commands)
    refused = [(TransferCode.WINDOW, command[0]) if command in outside else _FINE for command in commands]
    bench.memory.content[:] = bytes([_GUARD]) * _MEMORY_BYTES
    statuses, _, _ = await bench.run(commands, refused_reads=outside)
    assert statuses == refused
    _, statuses, _ = await bench.run(writes=commands, pause=0.2)
    assert statuses == refused
    first = base - _MEMORY_BASE
    guard = bytes([_GUARD])
    assert bench.memory.content[:first] == guard * first
    assert bench.memory.content[first + nbytes :] == guard * (_MEMORY_BYTES - first - nbytes)
    assert bench.memory.content[first : first + nbytes] != guard * nbytes
    # The largest read of all is refused as fast as any other.
    statuses, _, _ = await bench.run([(base, (1 << 32) - 1)], refused_reads=[(base, (1 << 32) - 1)])
    assert statuses == [(TransferCode.WINDOW, base)]
