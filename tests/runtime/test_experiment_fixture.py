"""What the scoring formats reach on a real model's keys, through driver and transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig, ScoreFormat
from nearkv.experiments.runner import open_device, run_experiment
from nearkv.experiments.summary import summarise
from nearkv.trace.format import read_trace

TRACE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"


@pytest.fixture(scope="module")
def trace():
    return read_trace(TRACE)


@pytest.mark.parametrize(
    ("score_format", "mean", "worst_head"),
    # The means are the project's targets; the worst heads keep a margin below what was measured.
    [(ScoreFormat.INT8, 0.985, 0.97), (ScoreFormat.INT4, 0.94, 0.87)],
)
def test_recall_of_the_true_top_tenth(score_format, mean, worst_head, trace):
    config = ExperimentConfig(
        trace=TRACE, policy=PolicyConfig("hill"), format=score_format, uniform_score=True, steps=24
    )
    with open_device(config) as device:
        total = summarise(run_experiment(config, trace, device))["total"]
    assert total["recall_mean"] >= mean
    assert total["recall_worst_head"] >= worst_head


def test_selected_scores_keep_what_exact_scores_would(trace):
    kept = []
    for changes in ({"format": ScoreFormat.INT4, "uniform_score": True}, {"hot_fraction": 1.0}):
        config = ExperimentConfig(trace=TRACE, policy=PolicyConfig("hill"), steps=12, **changes)
        with open_device(config) as device:
            kept.append(summarise(run_experiment(config, trace, device))["total"]["mass_kept"])
    int4, exact = kept
    assert exact > 0.9
    assert exact - int4 < 0.002  # 0.07 % of the mass in the design's own measurement
