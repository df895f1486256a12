"""cocotb bench of MemoryRequester with all tags: rate of reads and writes, latencies, tags of 5 bits.

Parameters: see pcie_requester_bench; the component's latencies by the names of their properties.
"""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.triggers import RisingEdge
from cocotbext.axi import AxiResp

from nearkv_hdl.pcie.formats import BEAT_BYTES, BEAT_DWORDS, COMPLETION_DWORDS, REQUEST_DWORDS
from nearkv_sim.benches.harness import parameters, report
from nearkv_sim.benches.pcie_requester_bench import bench_of
from nearkv_sim.benches.pcie_requester_harness import CLOCK_NS, HOST_BASE, RequesterBench

_TIMEOUT_MS = 2
_LATENCY_NS = 600
_READ_BYTES = 24 << 10
_WRITE_BYTES = 8 << 10
# Generation 3, 16 lanes: 8 GT/s each, 128b/130b (PCI Express Base Specification 3.1, 4.2.2).
_LINK_BYTES_PER_NS = 8 * 16 / 8 * 128 / 130
# A completion's header of 12 bytes; sequence number, LCRC and framing of 8 (3.3.1 and 4.2.2.3).
_OVERHEAD_BYTES = 20


def most_bytes_per_cycle(completion_bytes: int) -> float:
    """What link and RC, which gives a packet its own beats, can carry in completions of that size."""
    beats = -(-(COMPLETION_DWORDS + completion_bytes // 4) // BEAT_DWORDS)
    link = _LINK_BYTES_PER_NS * CLOCK_NS * completion_bytes / (completion_bytes + _OVERHEAD_BYTES)
    return min(link, completion_bytes / beats)


async def _cycles_between(clk: Any, valid: Any, ready: Any, beats: int) -> int:
    """Cycles from the first to the last of so many beats."""
    cycle, seen, first = 0, 0, 0
    while seen < beats:
        await RisingEdge(clk)
        cycle += 1
        if valid.value == 1 and ready.value == 1:
            first = first or cycle
            seen += 1
    return cycle - first


async def _read_rate(bench: RequesterBench) -> float:
    """Bytes per cycle on R in a long read, without its first latency."""
    dut = bench.dut
    beats = _READ_BYTES // BEAT_BYTES
    measured = cocotb.start_soon(_cycles_between(dut.clk, dut.s_axi_rvalid, dut.s_axi_rready, beats))
    answer = await bench.axi.read(HOST_BASE, _READ_BYTES)
    assert answer.resp == AxiResp.OKAY
    assert bytes(answer.data) == bench.content(HOST_BASE, _READ_BYTES)
    return (beats - 1) * BEAT_BYTES / await measured


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def reads_fill_the_link(dut: Any) -> None:
    """At 600 ns of latency R carries 90 % and more of what link and interface can."""
    bench = await bench_of(dut)
    bench.completer.latency_ns = _LATENCY_NS
    rates = {}
    for payload, read, boundary_128 in ((2, 2, True), (2, 5, True), (1, 2, True), (1, 2, False)):
        await bench.set_sizes(payload, read, boundary_128)
        bench.host.max_payload_size = payload
        rate, most = await _read_rate(bench), most_bytes_per_cycle(128 << payload)
        rates[f"{128 << payload}/{128 << read}/{128 if boundary_128 else 64}"] = [rate, most]
    report(bytes_per_cycle=rates)
    for sizes, (rate, most) in rates.items():
        # A request's beats leave without gaps, so the last one ends a little sooner than it came.
        assert 0.9 * most <= rate <= 1.05 * most, (sizes, rate, most)
    await bench.check_all_free()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def writes_fill_the_interface(dut: Any) -> None:
    """Beats of packets follow each other without a gap as long as the block takes them."""
    bench = await bench_of(dut)
    await bench.set_sizes(1, 2)
    packets = _WRITE_BYTES // 256
    beats = packets * -(-(REQUEST_DWORDS + 64) // BEAT_DWORDS)
    measured = cocotb.start_soon(_cycles_between(dut.clk, dut.rq_tvalid, dut.rq_tready, beats))
    answer = await bench.axi.write(HOST_BASE, bytes(_WRITE_BYTES))
    assert answer.resp == AxiResp.OKAY
    cycles = await measured
    report(write_cycles=cycles, write_beats=beats)
    assert beats - 1 <= cycles <= 1.25 * beats


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def latencies_are_what_they_are_said_to_be(dut: Any) -> None:
    """From AR to RQ, from the last beat on RC to R, from W to RQ, from RQ to B."""
    bench = await bench_of(dut)
    cycle = 0
    seen: dict[str, int] = {}

    async def watch() -> None:
        nonlocal cycle
        while True:
            await RisingEdge(dut.clk)
            cycle += 1
            for name in ("s_axi_ar", "s_axi_w", "rq_t", "rc_t", "s_axi_r", "s_axi_b"):
                if getattr(dut, f"{name}valid").value == 1:
                    seen.setdefault(name, cycle)

    watching = cocotb.start_soon(watch())
    await bench.axi.read(HOST_BASE + 60, 4)
    assert seen["rq_t"] - seen["s_axi_ar"] == parameters()["latency"]
    assert seen["s_axi_r"] - seen["rc_t"] == parameters()["answer_latency"]
    seen.clear()
    await bench.axi.write(HOST_BASE, bytes(4))
    assert seen["rq_t"] - seen["s_axi_w"] == parameters()["write_latency"]
    assert seen["s_axi_b"] - seen["rq_t"] == parameters()["response_latency"]
    watching.cancel()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def short_tags_are_kept_to(dut: Any) -> None:
    """Without extended tags 32 requests at most are under way, of tags below 32; the model checks them."""
    bench = await bench_of(dut)
    await bench.set_sizes(0, 0)
    bench.completer.latency_ns = _LATENCY_NS
    for extended, most in ((1, 50), (0, 32), (1, 50)):
        dut.extended_tags.value = extended
        bench.capability.extended_tag_field_enable = bool(extended)
        fewest = bench.free()[0]

        async def watch() -> None:
            nonlocal fewest
            while True:
                await RisingEdge(dut.clk)
                fewest = min(fewest, bench.free()[0])

        watching = cocotb.start_soon(watch())
        answer = await bench.axi.read(HOST_BASE, 50 * 128)
        watching.cancel()
        assert answer.resp == AxiResp.OKAY
        assert parameters()["tags"] - fewest == most
    await bench.check_all_free()
