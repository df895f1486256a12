"""cocotb bench of the whole kernel against the card model: good jobs, bad jobs, bad memory, RESET, rate.

Parameter: `design`, one of `kernel_designs.DESIGNS`.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import cocotb
from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiResp

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.layout import SCORE_BYTES, KeyFormat
from nearkv_hdl.top.read_port import KEYS
from nearkv_sim.benches.harness import report
from nearkv_sim.benches.kernel_bad_jobs import BEFORE_STREAMING, WHILE_STREAMING
from nearkv_sim.benches.kernel_damage import DAMAGED
from nearkv_sim.benches.kernel_harness import COUNTED, ERRORS, STATE, KernelBench
from nearkv_sim.benches.kernel_jobs import Job, random_job
from nearkv_sim.card.card import MEMORY_BASE

WHAT = ("list", "header", "query", "keys", "results", "selection")  # what a job reads and writes
_TIMEOUT_MS = 20  # 2,000,000 cycles


async def bench_of(dut: Any) -> KernelBench:
    """A bench after its reset."""
    bench = KernelBench(dut)
    await bench.start()
    return bench


def job_of(bench: KernelBench, blocks: int, heads: int, head_dim: int = 64, **options: Any) -> Job:
    """A random job of the bench's design."""
    return random_job(bench.design_name, bench.rng, blocks, heads, head_dim, **options)


def burst_of(bench: KernelBench, job: Job, address: int) -> int:
    """Where the burst begins that writes to an address: a chunk of ResultWriter, cut at aligned 16 beats."""
    longest_bytes = 16 * bench.design.bus_bytes
    chunk_bytes = min(longest_bytes, bench.design.block_tokens * SCORE_BYTES)
    in_chunk = (address - job.arguments[reg.RESULT_ADDRESS]) % chunk_bytes
    return max(address - in_chunk, address // longest_bytes * longest_bytes)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def good_jobs_one_after_the_other(dut: Any) -> None:
    """Every number of heads and every head_dim, INT8, INT4 and mixed, more and more pauses everywhere."""
    bench = await bench_of(dut)
    formats = [(KeyFormat.INT8,), (KeyFormat.INT4,), tuple(KeyFormat)]
    for index in range(2 * bench.design.query_group + 3):
        bench.pause((0, 0.2, 0.5)[index % 3])
        heads = index % bench.design.query_group + 1
        head_dim = bench.design.head_dims[index % len(bench.design.head_dims)]
        await bench.run(job_of(bench, 1 + index % 5 * 2, heads, head_dim, formats=formats[index // 2 % 3]))
        assert await bench.read(reg.CYCLES) >= bench.model.read(reg.CYCLES)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def selections_one_after_the_other(dut: Any) -> None:
    """Every number of heads; k below, at and above lines, blocks, all tokens; jobs of all scores between."""
    bench = await bench_of(dut)
    most, block_tokens = bench.design.topk_capacity, bench.design.block_tokens
    counts = (1, 7, 8, 9, block_tokens, 3 * block_tokens, most)
    for index, k in enumerate(counts * 2):
        bench.pause((0, 0.5)[index % 2])
        heads = index % bench.design.query_group + 1
        blocks = (1, 3, 5, most // block_tokens)[index % 4]
        await bench.run(job_of(bench, blocks, heads, k=k))
        assert await bench.read(reg.STATUS) == reg.JobState.DONE
        assert await bench.read(reg.CYCLES) >= bench.model.read(reg.CYCLES)
        if index % 3 == 0:
            await bench.run(job_of(bench, 2, heads))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def nothing_of_another_tenant_is_left(dut: Any) -> None:
    """Jobs of A, whole or dropped, over A's pattern; then B's, short and odd, into B's own pattern.

    The model has never met A's job, so that what it writes is B's alone.
    """
    bench = await bench_of(dut)
    a, b = 0xA5, 0x5B
    for index, (cycles, k) in enumerate(product((None, 150, 400, 700), (0, 5))):
        bench.pause(0.3 * (index % 2))
        of_a = job_of(bench, 6, bench.design.query_group, k=k and 40)
        of_a.keys[:, :-HEADER_BYTES] = a
        of_a.renew_headers(bench.design)
        await bench.begin(of_a)
        if cycles is None:
            await bench.wait()
        else:
            await ClockCycles(bench.clk, cycles)
        await bench.recover()
        # What the bus still owes of A must have come before A's memory is B's.
        await ClockCycles(bench.clk, 2000)
        bench.memory.content[:] = bytes([b]) * len(bench.memory.content)
        bench.memory.jobs.clear()
        await bench.run(job_of(bench, 1, 1, formats=(KeyFormat.INT4,), k=k))
        assert await bench.read(reg.STATUS) == reg.JobState.DONE
        assert bytes([a]) * 4 not in bench.memory.content


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def jobs_that_are_wrong_from_the_start(dut: Any) -> None:
    """Registers as the card model's, nothing written; no job runs before RESET, a good one does after it."""
    bench = await bench_of(dut)
    for bend in BEFORE_STREAMING:
        job = job_of(bench, 5, 2)
        bend(job, bench.design)
        await bench.run(job)
        assert await bench.read(reg.STATUS) == reg.JobState.FAILED
        await bench.recover()
    bench.pause(0.3)
    for bend in BEFORE_STREAMING[::5]:
        job = job_of(bench, 5, 2)
        bend(job, bench.design)
        await bench.run(job)
        await bench.run(job_of(bench, 2, 1))
        assert await bench.read(reg.STATUS) == reg.JobState.FAILED
        await bench.recover()
    await bench.run(job_of(bench, 2, 1))
    assert await bench.read(reg.STATUS) == reg.JobState.DONE


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def jobs_that_fail_under_way(dut: Any) -> None:
    """Error registers as the card model's, nothing written outside the results; then a good job."""
    bench = await bench_of(dut)
    for index, bend in enumerate(WHILE_STREAMING * 2 + DAMAGED):
        bench.pause(0.3 * (index % 2))
        job = job_of(bench, 5, 2)
        bend(job, bench.design)
        await bench.begin(job)
        await bench.wait()
        await bench.compare(*STATE)
        assert await bench.read(reg.STATUS) == reg.JobState.FAILED
        found, expected = (
            bench.outside_results(job, content) for content in (bench.memory.content, bench.model.content)
        )
        assert found == expected
        await bench.recover()
        if index % 5 == 0:
            await bench.run(job_of(bench, 2, 1))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def errors_of_the_memory(dut: Any) -> None:
    """SLVERR and DECERR at the first, a middle and the last beat of all that is read, and of results."""
    bench = await bench_of(dut)
    for index, (what, place) in enumerate(product(WHAT, (0, 0.5, 1))):
        bench.pause(0.3 * (index % 2))
        job = job_of(bench, 5, 2, k=50 if what == "selection" else 0)
        start, nbytes, block = job.range_of(what, bench.design)
        beats = nbytes // bench.design.bus_bytes
        address = start + bench.design.bus_bytes * int(place * (beats - 1))
        response = (AxiResp.SLVERR, AxiResp.DECERR)[(index + index // 3) % 2]
        bench.memory.bad = {address: response}
        await bench.begin(job)
        await bench.wait()
        token, tokens = int(job.descriptors[block]["first_token"]), bench.design.block_tokens
        if what in ("list", "selection"):
            token = tokens = 0
        assert await bench.read(reg.STATUS) == reg.JobState.FAILED
        errors = [await bench.read(register) for register in ERRORS]
        if what in ("results", "selection"):  # of a burst
            address = burst_of(bench, job, address)
        assert errors == [reg.ErrorCode.BUS_ERROR, address, token, tokens], (what, place)
        bench.memory.bad = {}
        # The card's memory never fails, so that the model has written its results.
        found, expected = bench.memory.content, bench.model.content
        assert bench.outside_results(job, found) == bench.outside_results(job, expected)
        await bench.recover()
        await bench.run(job_of(bench, 2, 1))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def reset_in_the_middle(dut: Any) -> None:
    """RESET after any number of cycles: all registers as after power-on, and the next job is a good one."""
    bench = await bench_of(dut)
    for index, cycles in enumerate((0, 1, 2, 3, 5, 8, 20, 50, 100, 150, 200, 300, 500, 800, 1200, 1800)):
        bench.pause(0.4 * (index % 2))
        dropped = job_of(bench, 6, 2, formats=(KeyFormat.INT8,), k=30 * (index // 2 % 2))
        await bench.begin(dropped)
        await ClockCycles(bench.clk, cycles)
        await bench.recover()
        await bench.compare(*STATE, *reg.COUNTERS)
        job = job_of(bench, 3, 1, k=9 * (index // 4 % 2))
        await bench.begin(job)
        await bench.wait()
        await bench.compare(*STATE, *COUNTED)
        found, expected = bench.memory.content, bench.model.content
        assert bench.outside_results(dropped, found) == bench.outside_results(dropped, expected)
        start, nbytes = job.arguments[reg.RESULT_ADDRESS] - MEMORY_BASE, job.arguments[reg.RESULT_BYTES]
        assert found[start : start + nbytes] == expected[start : start + nbytes]
        await bench.acknowledge()


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def start_while_busy(dut: Any) -> None:
    """The job goes on and has failed."""
    bench = await bench_of(dut)
    job = job_of(bench, 4, 1)
    await bench.begin(job)
    await bench.write(reg.CTRL, reg.CTRL.mask("ap_start"))
    await bench.wait()
    await bench.compare(*STATE)
    assert await bench.read(reg.ERROR_CODE) == reg.ErrorCode.START_WHILE_BUSY
    await bench.recover()
    await bench.run(job_of(bench, 2, 1))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def keys_stream_at_full_rate(dut: Any) -> None:
    """Between first and last key beat a bus slower than the lanes is busy; latencies count once."""
    latency_cycles = 200
    bench = KernelBench(dut, read_latency_cycles=latency_cycles)
    await bench.start()
    blocks, head_dim = 48, bench.design.head_dims[-1]
    await bench.run(job_of(bench, blocks, 1, head_dim, formats=(KeyFormat.INT8,)))
    beats = [beat for port in bench.slow_reads for beat in port.beats]
    keys = sorted(cycle for cycle, identifier in beats if identifier == KEYS)
    assert len(keys) == blocks * bench.design.bus_beats(head_dim, KeyFormat.INT8)
    cycles = keys[-1] - keys[0] + 1
    bus_cycles = sum(keys[0] <= cycle <= keys[-1] for cycle, _ in beats)
    job_cycles, model_cycles = await bench.read(reg.CYCLES), bench.model.read(reg.CYCLES)
    report(
        bus_share=bus_cycles / cycles,
        key_share=len(keys) / cycles,
        job_cycles=job_cycles,
        model_cycles=model_cycles,
    )
    if len(beats) > model_cycles:
        assert bus_cycles >= 0.95 * cycles
    # Both passes wait for descriptors, the second for codes and keys, too; the first goes through the whole
    # list with 64 descriptors under way; the pipelines fill and empty.
    once = 5 * latency_cycles + 2 * bench.design.lane_beats_per_block(head_dim)
    assert job_cycles <= max(len(beats), model_cycles) + once
