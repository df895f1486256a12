"""cocotb bench of MemoryRequester: what goes wrong costs SLVERR for its own beats and nothing for good.

Parameters: see pcie_requester_bench.
"""

from __future__ import annotations

import copy
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
from nearkv_sim.benches.pcie_requester_bench import bench_of
from nearkv_sim.benches.pcie_requester_harness import CLOCK_NS, HOST_BASE, Completions, RequesterBench

_TIMEOUT_MS = 5
_LIMIT_CYCLES, _REST_CYCLES = 600, 900  # timeout and quarantine here
_MAX_READ = 2  # requests of 512 bytes, which the host here answers in four completions
_READ_BYTES = 128 << _MAX_READ
_READ_BEATS = _READ_BYTES // BEAT_BYTES
_PIECES = 5
_START = HOST_BASE + 3 * _READ_BYTES


async def _bench_of(dut: Any) -> RequesterBench:
    bench = await bench_of(dut)
    await bench.set_sizes(0, _MAX_READ)
    bench.host.max_payload_size = 0
    dut.timeout_cycles.value, dut.quarantine_cycles.value = _LIMIT_CYCLES, _REST_CYCLES
    return bench


async def _check_failing(bench: RequesterBench, *failing: int) -> None:
    """Read five requests' bytes; beats of the failing ones alone are errors, the others have their data."""
    bench.answers.clear()
    answer = await bench.axi.read(_START, _PIECES * _READ_BYTES)
    for piece in range(_PIECES):
        answers = set(bench.answers[piece * _READ_BEATS : (piece + 1) * _READ_BEATS])
        assert answers == {AxiResp.SLVERR if piece in failing else AxiResp.OKAY}, (piece, bench.answers)
        if piece not in failing:
            at = piece * _READ_BYTES
            expected = bench.content(_START + at, _READ_BYTES)
            assert bytes(answer.data[at : at + _READ_BYTES]) == expected, piece
    assert len(bench.answers) == _PIECES * _READ_BEATS


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


def _lost(index: int) -> Callable[[Completions], Completions]:
    return lambda completions: completions[:index]


def _delayed(index: int, cycles: int) -> Callable[[Completions], Completions]:
    def delay(completions: Completions) -> Completions:
        completions[index].pause_ns = cycles * CLOCK_NS
        return completions

    return delay


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def bad_completions_fail_their_request_alone(dut: Any) -> None:
    """Every kind, as first, middle and last completion of the first, a middle and the last request."""
    bench = await _bench_of(dut)
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
        piece = random.choice((0, 2, _PIECES - 1))
        bench.fault(piece, kind(index))
        await _check_failing(bench, piece)
        await bench.check_all_free()
    bench.fault(1, _miscounted(1))
    bench.fault(3, _miscounted(0))
    await _check_failing(bench, 1, 3)
    await bench.check_all_free()
    await _check_failing(bench)
    assert bench.counters() == (0, 0, 0)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def spoilt_packets_fail_their_request(dut: Any) -> None:
    """A packet that the block discontinues, and one that is shorter than its descriptor says."""
    bench = await _bench_of(dut)

    def discontinue(frame: UsPcieFrame) -> None:
        frame.discontinue = True

    def shorten(frame: UsPcieFrame) -> None:
        for words in (frame.data, frame.byte_en, frame.parity):
            del words[5:]

    for spoil in (discontinue, shorten):
        bench.spoil_frame = spoil
        await _check_failing(bench, 0)
        await bench.check_all_free()
    await _check_failing(bench)
    assert bench.counters() == (0, 0, 0)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_lost_completion_times_out(dut: Any) -> None:
    """First, middle or last completion never comes: room is back at once, the tag when it has rested."""
    bench = await _bench_of(dut)
    tags, credits, headers = bench.free()
    for number, index in enumerate((0, 2, 3), start=1):
        bench.fault(2, _lost(index))
        await _check_failing(bench, 2)
        assert bench.counters() == (number, 0, 0)
        await bench.cycles(2)
        assert bench.free() == (tags - 1, credits, headers)
        # The others go round past the one that rests.
        for _ in range(3):
            await _check_failing(bench)
        assert bench.free()[0] == tags - 1
        bench.forget_requests()
        await bench.cycles(_REST_CYCLES + tags)
        await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_timeout_is_neither_early_nor_late(dut: Any) -> None:
    """From the request's beat to the event: at least the limit, at most a round of the watch more."""
    bench = await _bench_of(dut)
    for _ in range(3):
        bench.fault(0, lambda _: [])
        read = cocotb.start_soon(bench.axi.read(_START, BEAT_BYTES))
        count, sent = 0, None
        before = bench.counters()[0]
        while bench.counters()[0] == before:
            await RisingEdge(dut.clk)
            count += 1
            if dut.rq_tvalid.value == 1 and dut.rq_tready.value == 1:
                sent = count
        assert sent is not None
        # The counter shows the event in the next cycle.
        assert _LIMIT_CYCLES <= count - 1 - sent <= _LIMIT_CYCLES + parameters()["tags"]
        assert (await read).resp == AxiResp.SLVERR
        bench.forget_requests()
        await bench.cycles(_REST_CYCLES + parameters()["tags"])
        await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_packet_under_way_is_not_given_up(dut: Any) -> None:
    """The block stops within a request's only packet for longer than the limit: the request is answered."""
    bench = await _bench_of(dut)
    source = bench.device.rc_source

    async def stop() -> None:
        while dut.rc_tvalid.value != 1:
            await RisingEdge(dut.clk)
        source.pause = True
        await bench.cycles(2 * _LIMIT_CYCLES)
        assert bench.free()[0] == parameters()["tags"] - 1
        source.pause = False

    bench.spoil_frame = lambda _: cocotb.start_soon(stop())
    nbytes = 2 * BEAT_BYTES  # three beats
    answer = await bench.axi.read(_START, nbytes)
    assert answer.resp == AxiResp.OKAY
    assert bytes(answer.data) == bench.content(_START, nbytes)
    assert bench.counters() == (0, 0, 0)
    await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_late_completion_is_dropped(dut: Any) -> None:
    """Completions after the timeout reach nobody, though others use the room; the last one frees the tag."""
    bench = await _bench_of(dut)
    answers = bench.axi.read_if.r_channel
    for number, (index, packets) in enumerate(((0, 4), (2, 2), (3, 1)), start=1):
        late = bench.counters()[2]
        bench.fault(2, _delayed(index, _LIMIT_CYCLES + 700))
        await _check_failing(bench, 2)
        # Two reads on, the rows of the next one are those of the request that timed out.
        for _ in range(2):
            await _check_failing(bench)
        answers.pause = True
        reading = cocotb.start_soon(_check_failing(bench))
        await bench.cycles(200)
        assert bench.counters()[2] == late
        while bench.counters()[2] < late + packets:
            await bench.cycles(1)
        answers.pause = False
        await reading
        assert bench.counters() == (number, 0, late + packets)
        await bench.check_all_free()  # before the quarantine's end


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def unexpected_completions_are_dropped(dut: Any) -> None:
    """A completion of a tag that nobody uses, and a second answer to a request that has one."""
    bench = await _bench_of(dut)

    def twice(completions: Completions) -> Completions:
        stranger = copy.copy(completions[0])
        stranger.tag = 200  # beyond the tags in use
        return [*completions, stranger, *completions]

    bench.fault(1, twice)
    await _check_failing(bench)
    await bench.cycles(200)
    assert bench.counters() == (0, 5, 0)
    await bench.check_all_free()
    await _check_failing(bench)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def refused_bursts_issue_nothing(dut: Any) -> None:
    """Without bus mastering, of narrow beats, or without increments: SLVERR and no packet; others pass."""
    bench = await _bench_of(dut)
    before = bytes(bench.memory.mem[:])
    narrow, fixed = {"size": 3}, {"burst": AxiBurstType.FIXED}
    for enable, options in ((0, {}), (1, narrow), (1, fixed), (0, narrow)):
        dut.bus_master_enable.value = enable
        bench.reads.clear()
        bench.writes.clear()
        read = cocotb.start_soon(bench.axi.read(_START, 2 * _READ_BYTES, **options))
        write = cocotb.start_soon(bench.axi.write(_START, bytes(2 * _READ_BYTES), **options))
        assert (await read).resp == AxiResp.SLVERR
        assert (await write).resp == AxiResp.SLVERR
        dut.bus_master_enable.value = 1
        await bench.cycles(50)
        assert bench.reads == bench.writes == []
        await bench.check_all_free()
        await _check_failing(bench)
    assert bytes(bench.memory.mem[:]) == before


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def requests_never_exceed_the_room(dut: Any) -> None:
    """With a slow host, what may come back fits the block's buffer at any time, and nearly fills it."""
    bench = await _bench_of(dut)
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
