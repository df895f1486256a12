"""The scorer on event-driven simulators, bit for bit, in three shapes with random pauses."""

import pytest

from nearkv_hdl.attention.scorer import Scorer
from nearkv_sim.benches.scorer_bench import bench_design
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

SHAPES = {
    "tiny": {},
    "group-of-three": {"bus_bytes": 16, "lanes": 16, "query_group": 3, "head_dims": [64, 128]},
    # A quarter of a bus beat per cycle, and wider query codes.
    "narrow-lanes": {"bus_bytes": 16, "lanes": 4, "query_group": 1, "query_bits": 10},
}


@pytest.mark.parametrize("simulator", available_simulators())
@pytest.mark.parametrize("shape", SHAPES)
def test_scorer(shape, simulator):
    overrides = {"block_tokens": 16, **SHAPES[shape]}
    result = run_bench(
        Scorer(bench_design("tiny", overrides)),
        "nearkv_sim.benches.scorer_bench",
        name=f"scorer-{shape}",
        simulator=simulator,
        seed=3,
        parameters={"design": "tiny", "overrides": overrides, "blocks": 8},
    )
    assert result.passed == ("full_rate", "random_pauses", "slow_sink_with_extreme_operands")
    assert result.report["tokens"] == 8 * 16
