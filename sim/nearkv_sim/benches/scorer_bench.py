"""cocotb bench of the scorer: random jobs with random pauses on every port, compared bit for bit.

Parameters: `design`, a named design; `overrides`, fields of DesignConfig to replace; `blocks` of a job.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np

from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.benches.harness import StreamBench, beats_of, parameters, report, words_of
from nearkv_sim.scorer_job import random_job, read_scores

_TIMEOUT_MS = 100  # 10 million cycles


def bench_design(name: str, overrides: dict[str, Any]) -> DesignConfig:
    """The design a bench runs, from its parameters."""
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in overrides.items()
    }
    return replace(get_design(name), **fields)


async def _check_job(dut: Any, *, pauses: tuple[float, float], extreme: bool = False) -> dict[str, float]:
    """Run one job; returns its tokens, its cycles and the CPU seconds of simulating them."""
    given = parameters()
    design = bench_design(given["design"], given.get("overrides", {}))
    job = random_job(design, given["blocks"], np.random.default_rng(random.getrandbits(32)), extreme=extreme)
    expected = job.expected_scores(design)
    bench = StreamBench(dut, inputs=("i_block", "i_query", "i_keys"), outputs=("o_scores",))
    await bench.start()
    started = time.process_time()
    outputs, cycles = await bench.run(
        {name: beats_of(words) for name, words in job.input_words(design).items()},
        {"o_scores": len(expected)},
        input_pause=pauses[0],
        output_pause=pauses[1],
    )
    cpu_seconds = time.process_time() - started
    columns = (score_layout(design).size + 31) // 32
    tokens, scores, last = read_scores(design, words_of(outputs["o_scores"], columns))
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(tokens, job.expected_tokens(design))
    np.testing.assert_array_equal(np.flatnonzero(last), [len(expected) - 1])
    assert dut.o_overflow.value == 0
    assert dut.o_framing_error.value == 0
    return {"tokens": len(expected), "cycles": cycles, "cpu_seconds": cpu_seconds}


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def full_rate(dut: Any) -> None:
    """Sources always valid, sink always ready; reports the speed of the simulation."""
    report(**await _check_job(dut, pauses=(0, 0)))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def random_pauses(dut: Any) -> None:
    """Every port pauses a third of the time."""
    await _check_job(dut, pauses=(0.33, 0.33))


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def slow_sink_with_extreme_operands(dut: Any) -> None:
    """Back-pressure most of the time, operands at the ends of their ranges."""
    await _check_job(dut, pauses=(0.05, 0.8), extreme=True)
