"""A requester between an AXI manager and a host, across the integrated block's model.

The block and the host are cocotbext-pcie's, the manager is cocotbext-axi's. The host answers reads as a
`Completer` says: late, in pieces, out of order, with errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge, Timer
from cocotbext.axi import AxiBus, AxiMaster, AxiStreamBus, MemoryRegion
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.tlp import Tlp, TlpType
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us import UltraScalePlusPcieDevice
from cocotbext.pcie.xilinx.us.interface import UsPcieFrame

from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_sim.benches.axi_harness import random_pauses
from nearkv_sim.benches.harness import parameters
from nearkv_sim.golden.pcie_requests import MemoryRequest

HOST_BASE = 7 << 36  # needs addresses of 64 bits
HOST_BYTES = 1 << 15
CLOCK_NS = 4
TIMEOUT_CYCLES = 4000
Completions = list[Tlp]


@dataclass
class Completer:
    """How the host answers memory reads.

    Attributes:
        latency_ns: from a request to its first completion, every request on its own.
        spread_ns: up to this much more, drawn for every request, so that they overtake each other.
        pieces: completions end at multiples of the read completion boundary, drawn at random; otherwise
            they are as long as possible.
        faults: by the number of the read since the start, what is done to its completions before they are
            sent.

    """

    latency_ns: int = 0
    spread_ns: int = 0
    pieces: bool = False
    faults: dict[int, Callable[[Completions], Completions]] = field(default_factory=dict)


class RequesterBench:
    """All that surrounds the requester.

    Attributes:
        completer: how reads are answered.
        reads, writes: the requests that reached the host.
        answers: RRESP of every beat.
        spoil_frame: what is done to the next packet that the block gives to the requester.

    """

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.completer = Completer()
        self.reads: list[MemoryRequest] = []
        self.writes: list[MemoryRequest] = []
        self.answers: list[int] = []
        self._count = 0
        self.host = RootComplex()
        self.host.max_payload_size = 2  # 512 bytes
        self.host.max_read_request_size = 5
        self.device = UltraScalePlusPcieDevice(
            pcie_generation=3,
            pcie_link_width=16,
            user_clk_frequency=250e6,
            max_payload_size=512,
            enable_extended_tag=True,
            user_clk=dut.clk,
            user_reset=dut.rst,
            rq_bus=AxiStreamBus.from_prefix(dut, "rq"),
            rc_bus=AxiStreamBus.from_prefix(dut, "rc"),
            cfg_max_payload=dut.cfg_max_payload,
            cfg_max_read_req=dut.cfg_max_read_req,
        )
        self.host.make_port().connect(self.device)
        self.memory = MemoryRegion(HOST_BYTES)
        self.host.mem_address_space.register_region(self.memory, HOST_BASE)
        for kind in (TlpType.MEM_READ, TlpType.MEM_READ_64):
            self.host.register_rx_tlp_handler(kind, self._take_read)
        for kind in (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64):
            self.host.register_rx_tlp_handler(kind, self._take_write)
        self.axi = AxiMaster(AxiBus.from_prefix(dut, "s_axi"), dut.clk, dut.rst)
        self.spoil_frame: Callable[[UsPcieFrame], object] | None = None
        self._send_frame = self.device.rc_source.send
        self.device.rc_source.send = self._spoil_and_send

    async def start(self) -> None:
        """Reset and enumerate; nothing of a read times out before TIMEOUT_CYCLES."""
        dut = self.dut
        dut.bus_master_enable.value, dut.extended_tags.value, dut.cfg_rcb_128.value = 1, 1, 0
        dut.timeout_cycles.value, dut.quarantine_cycles.value = TIMEOUT_CYCLES, 0
        await self.host.enumerate()
        await self.host.find_device(self.device.functions[0].pcie_id).enable_device()
        await self.host.find_device(self.device.functions[0].pcie_id).set_master()
        self.memory.mem[:] = random.randbytes(HOST_BYTES)
        cocotb.start_soon(self._watch())

    @property
    def capability(self) -> Any:
        """The function's PCIe capability; the block shows two of its fields."""
        return self.device.functions[0].pcie_cap

    async def set_sizes(self, max_payload: int, max_read: int, boundary_128: bool = False) -> None:
        """Set the function's sizes, 128 << n bytes, and the host's read completion boundary."""
        self.capability.max_payload_size = max_payload
        self.capability.max_read_request_size = max_read
        self.host.read_completion_boundary = boundary_128
        self.dut.cfg_rcb_128.value = boundary_128
        await self.cycles(4)
        assert int(self.dut.cfg_max_payload.value) == max_payload
        assert int(self.dut.cfg_max_read_req.value) == max_read

    def pause(self, share: float) -> None:
        """Let every channel pause at random."""
        read, write = self.axi.read_if, self.axi.write_if
        for channel in (
            *(read.ar_channel, read.r_channel, write.aw_channel, write.w_channel, write.b_channel),
            *(self.device.rq_sink, self.device.rc_source),
        ):
            channel.set_pause_generator(random_pauses(share))

    def fault(self, number: int, change: Callable[[Completions], Completions]) -> None:
        """Let something happen to the completions of a read, 0 for the next one."""
        self.completer.faults[self._count + number] = change

    def forget_requests(self) -> None:
        """End what the block waits for, as its own completion timeout would."""
        self.device.active_request[:] = [None] * len(self.device.active_request)

    async def cycles(self, count: int) -> None:
        """Wait."""
        await Timer(count * CLOCK_NS, unit="ns")

    def content(self, address: int, nbytes: int) -> bytes:
        """What the host holds."""
        return bytes(self.memory.mem[address - HOST_BASE : address - HOST_BASE + nbytes])

    def counters(self) -> tuple[int, int, int]:
        """Timeouts, unexpected and late completions."""
        names = ("timeouts", "unexpected_completions", "late_completions")
        timeouts, unexpected, late = (int(getattr(self.dut, name).value) for name in names)
        return timeouts, unexpected, late

    def free(self) -> tuple[int, int, int]:
        """Tags, credits and headers that are not in use."""
        dut = self.dut
        return int(dut.tags_free.value), int(dut.credits_free.value), int(dut.headers_free.value)

    async def check_all_free(self, limit_cycles: int = 4) -> None:
        """Tags and room are back at what a reset gives."""
        await self.cycles(limit_cycles)
        limits = parameters()
        assert self.free() == (limits["tags"], limits["completion_bytes"] // 16, limits["completion_headers"])

    async def _spoil_and_send(self, frame: UsPcieFrame) -> None:
        if self.spoil_frame is not None:
            self.spoil_frame(frame)
            self.spoil_frame = None
        await self._send_frame(frame)

    async def _take_read(self, tlp: Tlp) -> None:
        self.reads.append(MemoryRequest(tlp.address, tlp.length, tlp.first_be, tlp.last_be))
        fault = self.completer.faults.pop(self._count, None)
        self._count += 1
        completions = self._completions(tlp)
        cocotb.start_soon(self._answer(completions if fault is None else fault(completions)))

    async def _answer(self, completions: Completions) -> None:
        how = self.completer
        delay_ns = how.latency_ns + (random.randrange(how.spread_ns) if how.spread_ns else 0)
        if delay_ns:
            await Timer(delay_ns, unit="ns")
        for completion in completions:
            if pause_ns := getattr(completion, "pause_ns", 0):
                await Timer(pause_ns, unit="ns")
            await self.host.send(completion)

    def _completions(self, tlp: Tlp) -> Completions:
        """Successful completions of a read."""
        start = tlp.address + tlp.get_first_be_offset()
        end = tlp.address + 4 * tlp.length
        boundary = 128 if self.host.read_completion_boundary else 64
        longest = 128 << self.host.max_payload_size
        cuts = range(start // boundary * boundary + boundary, end, boundary)
        chosen = [cut for cut in cuts if random.random() < 0.4] if self.completer.pieces else []
        if not self.completer.pieces:
            chosen = [cut for cut in cuts if cut % longest == 0]
        completions = []
        for first, after in zip([start, *chosen], [*chosen, end], strict=True):
            completion = Tlp.create_completion_data_for_tlp(tlp, PcieId(0, 0, 0))
            completion.byte_count = end - first
            completion.lower_address = first & 0x7F
            completion.set_data(self.content(first // 4 * 4, after - first // 4 * 4))
            completions.append(completion)
        return completions

    async def _take_write(self, tlp: Tlp) -> None:
        enables = [0xF] * tlp.length
        enables[0] = tlp.first_be
        if tlp.length > 1:
            enables[-1] = tlp.last_be
        payload = {
            tlp.address + at: byte for at, byte in enumerate(tlp.get_data()) if enables[at // 4] >> at % 4 & 1
        }
        self.writes.append(MemoryRequest(tlp.address, tlp.length, tlp.first_be, tlp.last_be, payload))
        for address, byte in payload.items():
            self.memory.mem[address - HOST_BASE] = byte

    async def _watch(self) -> None:
        """Check that RQ keeps its contract and collect the answers."""
        dut = self.dut
        waiting: tuple[int, ...] | None = None
        inside = False
        while True:
            await RisingEdge(dut.clk)
            valid = dut.rq_tvalid.value == 1
            assert valid or not inside, "rq_tvalid fell within a packet"
            assert valid or waiting is None, "rq_tvalid fell before the beat was taken"
            if valid:
                beat = tuple(
                    int(getattr(dut, f"rq_{name}").value) for name in ("tdata", "tkeep", "tuser", "tlast")
                )
                assert waiting in (None, beat), "a beat of rq changed before it was taken"
                taken = dut.rq_tready.value == 1
                waiting = None if taken else beat
                inside = not (taken and beat[3])
            if dut.s_axi_rvalid.value == 1 and dut.s_axi_rready.value == 1:
                self.answers.append(int(dut.s_axi_rresp.value))


def beats_of(address: int, nbytes: int) -> int:
    """Beats that hold the bytes."""
    return (address + nbytes - 1) // BEAT_BYTES - address // BEAT_BYTES + 1
