"""cocotb bench of MemoryRequester: what goes wrong costs SLVERR for its own beats and nothing for good.

Parameters: see pcie_requester_bench.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiBurstType, AxiResp
from cocotbext.pcie.core.tlp import Tlp
from cocotbext.pcie.core.utils import PcieId
from cocotbext.pcie.xilinx.us.interface import UsPcieFrame

from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_sim.benches.harness import parameters
from nearkv_sim.benches.pcie_requester_failing import (
    PIECES,
    READ_BYTES,
    START,
    check_failing,
    failing_bench_of,
)
from nearkv_sim.benches.pcie_requester_harness import HOST_BASE, Completions

_TIMEOUT_MS = 5


def _ends_with(make: Callable[[Tlp], Tlp], index: int) -> Callable[[Completions], Completions]:
    """The completion at `index` is replaced by one without data, and none follows."""
    return lambda completions: [*completions[:index], make(completions[index])]


def _unsupported(tlp: Tlp) -> Tlp:
    return Tlp.create_ur_completion_for_tlp(tlp, PcieId(0, 0, 0))


def _aborted(tlp: Tlp) -> Tlp:
    return Tlp.create_ca_completion_for_tlp(tlp, PcieId(0, 0, 0))


def _retried(tlp: Tlp) -> Tlp:
    return Tlp.create_crs_completion_for_tlp(tlp, PcieId(0, 0, 0))


def _without_data(tlp: Tlp) -> Tlp:
    empty = Tlp.create_completion_for_tlp(tlp, PcieId(0, 0, 0))
    empty.byte_count, empty.lower_address = tlp.byte_count, tlp.lower_address
    return empty


def _poisoned(index: int) -> Callable[[Completions], Completions]:
    def poison(completions: Completions) -> Completions:
        completions[index].ep = True
        return completions

    return poison


def _miscounted(index: int) -> Callable[[Completions], Completions]:
    def miscount(completions: Completions) -> Completions:
        completions[index].byte_count += 4
        return completions

    return miscount


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def bad_completions_fail_their_request_alone(dut: Any) -> None:
    """Every kind, as first, middle and last completion of the first, a middle and the last request."""
    bench = await failing_bench_of(dut)
    kinds: list[Callable[[int], Callable[[Completions], Completions]]] = [
        *(
            lambda index, make=make: _ends_with(make, index)
            for make in (_unsupported, _aborted, _retried, _without_data)
        ),
        _poisoned,
    ]
    for kind, index in itertools.product(kinds, (0, 2, 3)):
        bench.pause(random.choice((0, 0.3)))
        bench.completer.spread_ns = random.choice((0, 300))
        piece = random.choice((0, 2, PIECES - 1))
        bench.fault(piece, kind(index))
        await check_failing(bench, piece)
        await bench.check_all_free()
    bench.fault(1, _miscounted(1))
    bench.fault(3, _miscounted(0))
    await check_failing(bench, 1, 3)
    await bench.check_all_free()
    await check_failing(bench)
    assert bench.counters() == (0, 0, 0)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def spoilt_packets_fail_their_request(dut: Any) -> None:
    """A packet that the block discontinues, and one that is shorter than its descriptor says."""
    bench = await failing_bench_of(dut)

    def discontinue(frame: UsPcieFrame) -> None:
        frame.discontinue = True

    def shorten(frame: UsPcieFrame) -> None:
        for words in (frame.data, frame.byte_en, frame.parity):
            del words[5:]

    for spoil in (discontinue, shorten):
        bench.spoil_frame = spoil
        await check_failing(bench, 0)
        await bench.check_all_free()
    await check_failing(bench)
    assert bench.counters() == (0, 0, 0)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def refused_bursts_issue_nothing(dut: Any) -> None:
    """Without bus mastering, of narrow beats, or without increments: SLVERR and no packet; others pass."""
    bench = await failing_bench_of(dut)
    before = bytes(bench.memory.mem[:])
    narrow, fixed = {"size": 3}, {"burst": AxiBurstType.FIXED}
    for enable, options in ((0, {}), (1, narrow), (1, fixed), (0, narrow)):
        dut.bus_master_enable.value = enable
        bench.reads.clear()
        bench.writes.clear()
        read = cocotb.start_soon(bench.axi.read(START, 2 * READ_BYTES, **options))
        write = cocotb.start_soon(bench.axi.write(START, bytes(2 * READ_BYTES), **options))
        assert (await read).resp == AxiResp.SLVERR
        assert (await write).resp == AxiResp.SLVERR
        dut.bus_master_enable.value = 1
        await bench.cycles(50)
        assert bench.reads == bench.writes == []
        await bench.check_all_free()
        await check_failing(bench)
    assert bytes(bench.memory.mem[:]) == before


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def requests_never_exceed_the_room(dut: Any) -> None:
    """With a slow host, what may come back fits the block's buffer at any time, and nearly fills it."""
    bench = await failing_bench_of(dut)
    dut.timeout_cycles.value = 1 << 20
    room, headers = parameters()["completion_bytes"] // 16, parameters()["completion_headers"]
    most = [0, 0]

    async def watch(boundary: int) -> None:
        while True:
            await RisingEdge(dut.clk)
            _, credits_free, headers_free = bench.free()
            most[0], most[1] = max(most[0], room - credits_free), max(most[1], headers - headers_free)
            beats = completions = 0
            for request in filter(None, bench.device.active_request):
                first, end = request.address, request.address + 4 * request.length
                beats += -(-end // BEAT_BYTES) - first // BEAT_BYTES
                completions += -(-end // boundary) - first // boundary
            assert 4 * beats + completions <= room - credits_free
            assert completions <= headers - headers_free

    for boundary, max_read in itertools.product((64, 128), range(6)):
        await bench.set_sizes(0, max_read, boundary == 128)
        most[:] = [0, 0]
        bench.completer.latency_ns = 2000
        watching = cocotb.start_soon(watch(boundary))
        answer = await bench.axi.read(HOST_BASE + 100, 9000)
        watching.cancel()
        assert answer.resp == AxiResp.OKAY
        assert bytes(answer.data) == bench.content(HOST_BASE + 100, 9000)
        cost = 4 * (2 << max_read) + (2 << max_read) * BEAT_BYTES // boundary
        wanted = min(room // cost, parameters()["tags"]) * cost
        assert wanted - cost < most[0] <= room, (boundary, max_read, most)
        assert most[1] <= headers
    await bench.check_all_free()
