"""cocotb bench of the whole kernel against the card model: good jobs, bad jobs, bad memory, RESET, rate.

Parameter: `design`, one of `kernel_jobs.DESIGNS`.
"""

from __future__ import annotations

from typing import Any

import cocotb

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.benches.kernel_harness import KernelBench
from nearkv_sim.benches.kernel_jobs import Job, random_job

_TIMEOUT_MS = 20  # 2,000,000 cycles


async def bench_of(dut: Any) -> KernelBench:
    """A bench after its reset."""
    bench = KernelBench(dut)
    await bench.start()
    return bench


def job_of(bench: KernelBench, blocks: int, heads: int, head_dim: int = 64, **formats: Any) -> Job:
    """A random job of the bench's design."""
    return random_job(bench.design_name, bench.rng, blocks, heads, head_dim, **formats)


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
