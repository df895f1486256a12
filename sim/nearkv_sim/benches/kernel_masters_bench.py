"""cocotb bench of how fast keys come through one or several key masters, each behind a slow memory.

Parameter: `design`, one of `kernel_designs.DESIGNS` whose lanes take a beat of keys per cycle.
"""

from __future__ import annotations

from typing import Any

import cocotb

from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.top.read_port import KEYS
from nearkv_sim.benches.harness import report
from nearkv_sim.benches.kernel_harness import KernelBench
from nearkv_sim.benches.kernel_jobs import random_job

_TIMEOUT_MS = 20  # 2,000,000 cycles
LATENCY_CYCLES = 200
RATE = (3, 4)  # of an HBM port, 32 B × 450 MHz (AMD PG276), to a bus of 64 B at 300 MHz
BLOCKS = (20, 80)  # the larger job has 20,480 beats of keys
PLACES = {"all in bank 0": (0,), "all in bank 1": (1,), "alternating": (0, 1), "in pairs": (0, 0, 1, 1)}


async def key_beats_per_cycle(bench: KernelBench, masters: tuple[int, ...]) -> float:
    """Beats of keys per cycle on all ports, from a job's first to its last.

    Of a longer job what it has more than a shorter one, so that what readers fetch ahead does not count.
    """
    head_dim = bench.design.head_dims[-1]
    block_beats = bench.design.bus_beats(head_dim, KeyFormat.INT8)
    spans = []
    for blocks in BLOCKS:
        for port in bench.slow_reads:
            port.beats.clear()
        job = random_job(
            bench.design_name, bench.rng, blocks, 1, head_dim, formats=(KeyFormat.INT8,), masters=masters
        )
        await bench.run(job)
        # Each block came through the port of its bank.
        read_by = [bench.design.key_master(address) for address in job.key_addresses]
        keys = [[cycle for cycle, which in port.beats if which == KEYS] for port in bench.slow_reads]
        assert [len(of_port) for of_port in keys] == [
            read_by.count(master) * block_beats for master in range(bench.design.key_masters)
        ]
        taken = [cycle for of_port in keys for cycle in of_port]
        spans.append(max(taken) - min(taken))
    return (BLOCKS[1] - BLOCKS[0]) * block_beats / (spans[1] - spans[0])


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def keys_through_slow_ports(dut: Any) -> None:
    """Reports the key beats per cycle for every place that the blocks of a job may have."""
    bench = KernelBench(dut, LATENCY_CYCLES, RATE)
    await bench.start()
    for name, masters in PLACES.items():
        if max(masters) < bench.design.key_masters:
            report(**{name: await key_beats_per_cycle(bench, masters)})
