"""What benches of AXI managers need: a memory with bad addresses, and commands checked end to end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cocotbext.axi import AxiBus, AxiResp, AxiSlave

from nearkv_hdl.bus.axi import PAGE_BYTES
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_sim.benches.harness import StreamBench, parameters

MEMORY_BASE = (1 << 63) + 3 * PAGE_BYTES  # uses the top address bit
MEMORY_BYTES = 8 * PAGE_BYTES
_COMMAND = command_layout(64, 32)
_STATUS = status_layout(64)
Command = tuple[int, int]  # address, bytes
Status = tuple[TransferCode, int]
FINE: Status = (TransferCode.OKAY, 0)


@dataclass
class BadBeat(Exception):
    """What the memory answers at a bad address."""

    response: AxiResp


class Memory:
    """Memory behind cocotbext-axi's subordinate, with bad addresses.

    Attributes:
        base: address of the first byte.
        content: bytes from there on.
        bad: response by beat address.

    """

    def __init__(self, bus_bytes: int, content: bytes, base: int = MEMORY_BASE) -> None:
        self.bus_bytes = bus_bytes
        self.base = base
        self.content = bytearray(content)
        self.bad: dict[int, AxiResp] = {}
        self.response = AxiResp.OKAY  # of the failure that is being reported

    def _offset(self, address: int, nbytes: int) -> int:
        offset = address - self.base
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
        self.memory = Memory(self.bus_bytes, random.randbytes(MEMORY_BYTES))
        slave = AxiSlave(AxiBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, self.memory)
        self.memory.report(slave.read_if.r_channel, "rresp")
        self.memory.report(slave.write_if.b_channel, "bresp")
        self.channels = [
            *(slave.read_if.ar_channel, slave.read_if.r_channel),
            *(slave.write_if.aw_channel, slave.write_if.w_channel, slave.write_if.b_channel),
        ]

    async def start(self) -> None:
        """Reset, with windows as large as the memory."""
        self.set_window("read", MEMORY_BASE, MEMORY_BYTES)
        self.set_window("write", MEMORY_BASE, MEMORY_BYTES)
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
                offset = beat - MEMORY_BASE
                data = int.from_bytes(before[offset : offset + self.bus_bytes], "little")
                assert word & (1 << width) - 1 == data, (hex(address), nbytes, hex(beat))
        statuses = [[_status(word) for word in taken[f"{way}_status"]] for way in ("read", "write")]
        return statuses[0], statuses[1], bytes(written)

    async def check_writes(
        self, writes: Sequence[Command], *, reads: Sequence[Command] = (), pause: float = 0
    ) -> None:
        """Run commands that do not fail; compare the whole memory."""
        expected = bytearray(self.memory.content)
        read_statuses, write_statuses, written = await self.run(reads, writes, pause=pause)
        assert read_statuses == [FINE] * len(reads)
        assert write_statuses == [FINE] * len(writes)
        done = 0
        for address, nbytes in writes:
            offset = address - MEMORY_BASE
            expected[offset : offset + nbytes] = written[done : done + nbytes]
            done += nbytes
        assert self.memory.content == expected


def _pack(command: Command) -> int:
    address, nbytes = command
    return int(_COMMAND.const({"address": address, "bytes": nbytes}).as_value().value)


def _status(word: int) -> Status:
    status = _STATUS.from_bits(word)
    return TransferCode(status.code), status.address
