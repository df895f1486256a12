"""Simulated cycles per CPU-second of one scorer: compiled RTL beside cocotb on Verilator and Icarus."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.measure import Row
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.cosim.runner import available_simulators, run_bench
from nearkv_sim.scorer_job import random_job, read_scores

_DESIGN = "ulx3s_85f"  # 64-byte bus, 64 lanes, one query head
_COMPILED_BLOCKS = 512
_COCOTB_BLOCKS = {"verilator": 16, "icarus": 4}
_REPEATS = 3
_SEED = 1
_REFERENCE = "CXXRTL"


def run() -> list[Row]:
    """One row per engine, each checked against golden scores; cocotb drives every port from Python."""
    design = get_design(_DESIGN)
    speeds = _compiled_speeds()
    for simulator in available_simulators():
        report = run_bench(
            Scorer(design),
            "nearkv_sim.benches.scorer_bench",
            name=f"scorer-{design.name}",
            simulator=simulator,
            seed=_SEED,
            parameters={"design": design.name, "blocks": _COCOTB_BLOCKS[simulator]},
            tests=["full_rate"],
        ).report
        speeds[f"cocotb on {simulator}"] = report["cycles"] / report["cpu_seconds"]
    shape = f"{design.bus_bytes}-byte bus, {design.lanes} lanes, {design.query_group} head"
    return [
        Row(f"{engine}: {shape}", speed, "cycles/CPU-s", speed / speeds[_REFERENCE], _REFERENCE)
        for engine, speed in speeds.items()
    ]


def _compiled_speeds() -> dict[str, float]:
    """Simulated cycles per CPU-second, best of some runs."""
    design = get_design(_DESIGN)
    compiled = CompiledComponent(Scorer(design), name=design.name)
    job = random_job(design, _COMPILED_BLOCKS, np.random.default_rng(_SEED))
    inputs, expected = job.input_words(design), job.expected_scores(design)
    speeds = {}
    for engine, stalls in ((_REFERENCE, None), (f"{_REFERENCE}, random stalls", Stalls(_SEED))):
        seconds = []
        for _ in range(_REPEATS):
            started = time.process_time()
            result = compiled.run(inputs, {"o_scores": len(expected)}, stalls=stalls)
            seconds.append(time.process_time() - started)
            if not np.array_equal(read_scores(design, result.outputs["o_scores"])[1], expected):
                raise RuntimeError(f"scores of {engine} differ from the golden model's")
        speeds[engine] = result.cycles / min(seconds)
    return speeds
