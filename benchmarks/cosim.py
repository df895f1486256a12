"""Simulated cycles per CPU-second of one scorer: compiled RTL beside cocotb on Verilator and Icarus."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.registry import Table
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators
from nearkv_sim.scorer_job import random_job, read_scores

_DESIGN = "ulx3s_85f"  # 64-byte bus, 64 lanes, one query head
_COMPILED_BLOCKS = 512
_COCOTB_BLOCKS = {"verilator": 16, "icarus": 4}
_REPEATS = 3
_SEED = 1


def measure() -> Table:
    """Every engine scores checked jobs; cocotb's drives each port from Python in each cycle."""
    design = get_design(_DESIGN)
    rows = _compiled_rows()
    for simulator in available_simulators():
        result = run_bench(
            Scorer(design),
            "nearkv_sim.benches.scorer_bench",
            name=f"scorer-{design.name}",
            simulator=simulator,
            seed=_SEED,
            parameters={"design": design.name, "blocks": _COCOTB_BLOCKS[simulator]},
            tests=["full_rate"],
        )
        rows.append(_row(f"cocotb + {simulator}", result.report["cycles"], result.report["cpu_seconds"]))
    reference = rows[0]["cycles / CPU-s"]
    for row in rows:
        row["CXXRTL is faster by"] = reference / row["cycles / CPU-s"]
    return Table(
        f"Scorer {design.name} ({design.bus_bytes}-byte bus, {design.lanes} lanes, {design.query_group}"
        " query head), full rate unless stated; scores checked",
        rows,
    )


def _row(engine: str, cycles: int, cpu_seconds: float) -> dict[str, Any]:
    return {"engine": engine, "cycles": cycles, "CPU-s": cpu_seconds, "cycles / CPU-s": cycles / cpu_seconds}


def _compiled_rows() -> list[dict[str, Any]]:
    design = get_design(_DESIGN)
    compiled = CompiledComponent(Scorer(design), name=design.name)
    job = random_job(design, _COMPILED_BLOCKS, np.random.default_rng(_SEED))
    inputs, expected = job.input_words(design), job.expected_scores(design)
    rows = []
    for engine, stalls in (("CXXRTL", None), ("CXXRTL, random stalls", Stalls(_SEED))):
        seconds = []
        for _ in range(_REPEATS):
            started = time.process_time()
            result = compiled.run(inputs, {"o_scores": len(expected)}, stalls=stalls)
            seconds.append(time.process_time() - started)
            if not np.array_equal(read_scores(design, result.outputs["o_scores"])[1], expected):
                raise RuntimeError(f"scores of {engine} differ from the golden model's")
        rows.append(_row(engine, result.cycles, min(seconds)))
    return rows
