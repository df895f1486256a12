"""cocotb bench of MemoryRequester: completions that never come, come late, or come to nobody.

Parameters: see pcie_requester_bench.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiResp

from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_sim.benches.harness import parameters
from nearkv_sim.benches.pcie_requester_failing import (
    LIMIT_CYCLES,
    REST_CYCLES,
    START,
    check_failing,
    failing_bench_of,
)
from nearkv_sim.benches.pcie_requester_harness import CLOCK_NS, Completions

_TIMEOUT_MS = 5


def _lost(index: int) -> Callable[[Completions], Completions]:
    return lambda completions: completions[:index]


def _delayed(index: int, cycles: int) -> Callable[[Completions], Completions]:
    def delay(completions: Completions) -> Completions:
        completions[index].pause_ns = cycles * CLOCK_NS
        return completions

    return delay


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_lost_completion_times_out(dut: Any) -> None:
    """First, middle or last completion never comes: room is back at once, the tag when it has rested."""
    bench = await failing_bench_of(dut)
    tags, credits, headers = bench.free()
    for number, index in enumerate((0, 2, 3), start=1):
        bench.fault(2, _lost(index))
        await check_failing(bench, 2)
        assert bench.counters() == (number, 0, 0)
        await bench.cycles(2)
        assert bench.free() == (tags - 1, credits, headers)
        # The others go round past the one that rests.
        for _ in range(3):
            await check_failing(bench)
        assert bench.free()[0] == tags - 1
        bench.forget_requests()
        await bench.cycles(REST_CYCLES + tags)
        await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_timeout_is_neither_early_nor_late(dut: Any) -> None:
    """From the request's beat to the event: at least the limit, at most a round of the watch more."""
    bench = await failing_bench_of(dut)
    for _ in range(3):
        bench.fault(0, lambda _: [])
        read = cocotb.start_soon(bench.axi.read(START, BEAT_BYTES))
        count, sent = 0, None
        before = bench.counters()[0]
        while bench.counters()[0] == before:
            await RisingEdge(dut.clk)
            count += 1
            if dut.rq_tvalid.value == 1 and dut.rq_tready.value == 1:
                sent = count
        assert sent is not None
        # The counter shows the event in the next cycle.
        assert LIMIT_CYCLES <= count - 1 - sent <= LIMIT_CYCLES + parameters()["tags"]
        assert (await read).resp == AxiResp.SLVERR
        bench.forget_requests()
        await bench.cycles(REST_CYCLES + parameters()["tags"])
        await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_packet_under_way_is_not_given_up(dut: Any) -> None:
    """The block stops within a request's only packet for longer than the limit: the request is answered."""
    bench = await failing_bench_of(dut)
    source = bench.device.rc_source

    async def stop() -> None:
        while dut.rc_tvalid.value != 1:
            await RisingEdge(dut.clk)
        source.pause = True
        await bench.cycles(2 * LIMIT_CYCLES)
        assert bench.free()[0] == parameters()["tags"] - 1
        source.pause = False

    bench.spoil_frame = lambda _: cocotb.start_soon(stop())
    nbytes = 2 * BEAT_BYTES  # three beats
    answer = await bench.axi.read(START, nbytes)
    assert answer.resp == AxiResp.OKAY
    assert bytes(answer.data) == bench.content(START, nbytes)
    assert bench.counters() == (0, 0, 0)
    await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_late_completion_is_dropped(dut: Any) -> None:
    """Completions after the timeout reach nobody, though others use the room; the last one frees the tag."""
    bench = await failing_bench_of(dut)
    answers = bench.axi.read_if.r_channel
    for number, (index, packets) in enumerate(((0, 4), (2, 2), (3, 1)), start=1):
        late = bench.counters()[2]
        bench.fault(2, _delayed(index, LIMIT_CYCLES + 700))
        await check_failing(bench, 2)
        # Two reads on, the rows of the next one are those of the request that timed out.
        for _ in range(2):
            await check_failing(bench)
        answers.pause = True
        reading = cocotb.start_soon(check_failing(bench))
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
    bench = await failing_bench_of(dut)

    def twice(completions: Completions) -> Completions:
        stranger = copy.copy(completions[0])
        stranger.tag = 200  # beyond the tags in use
        return [*completions, stranger, *completions]

    bench.fault(1, twice)
    await check_failing(bench)
    await bench.cycles(200)
    assert bench.counters() == (0, 5, 0)
    await bench.check_all_free()
    await check_failing(bench)
