"""KeyScorer's RTL: scores and statistics equal those of host-folded queries, and keys flow at full rate."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import prepare_query
from nearkv.trace.format import read_trace
from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.attention.score_statistics import statistics_job_layout
from nearkv_hdl.attention.score_statistics_report import statistics_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P, LFE5U_85F
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_sim.cosim import CompiledComponent, RunResult, Stalls, pack_words, unpack_words
from nearkv_sim.fold_job import FoldJob, fold_job, fold_words, random_fold_job
from nearkv_sim.formal import Status, prove_stream_contract
from nearkv_sim.golden import score_statistics as golden
from nearkv_sim.scorer_job import read_scores
from nearkv_sim.synthesis.budgets import BUDGETS, KEY_SCORER_BUDGETS
from nearkv_sim.synthesis.report import as_record, synthesise_design, table_lines
from nearkv_sim.synthesis.resources import mapping_problems
from nearkv_sim.synthesis.units import Unit

INT8, INT4 = KeyFormat.INT8, KeyFormat.INT4
FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"


def custom(**changes) -> DesignConfig:
    parameters = {
        "name": "custom",
        "device": KU15P,
        "bus_bytes": 16,
        "lanes": 16,
        "query_group": 2,
        "head_dims": (64, 128, 256),
        "clock_hz": 100_000_000,
        "block_tokens": 32,
    }
    return DesignConfig(**{**parameters, **changes})


SHAPES = {
    "heads": custom(query_group=3),
    "keys": custom(query_group=1, query_bits=10),
    "plain": custom(query_bits=12, variant=MacVariant.PLAIN),
    "blocks": custom(device=LFE5U_85F, bus_bytes=32, variant=MacVariant.MULT18X18D),
}


@cache
def compiled(name: str) -> tuple[DesignConfig, CompiledComponent]:
    design = DESIGNS[name] if name in DESIGNS else SHAPES[name]
    return design, CompiledComponent(KeyScorer(design), name=f"key_scorer_{name}", flatten=False)


def check(name: str, jobs: list[FoldJob], stalls: Stalls | None = None) -> RunResult:
    design, scorer = compiled(name)
    folded = [job.folded(design) for job in jobs]
    words = fold_words(design, jobs)
    words["i_keys"] = np.concatenate([job.input_words(design)["i_keys"] for job in folded])
    words["i_job"] = pack_words(
        statistics_job_layout(design),
        fraction_bits=np.array([job.score_fraction_bits for job in jobs]),
        active=np.full(len(jobs), (1 << design.query_group) - 1),
    )
    tokens = [len(job.codes) * design.block_tokens for job in folded]
    beats = {"o_scores": sum(tokens), "o_statistics": len(jobs) * design.query_group}
    result = scorer.run(words, beats, stalls=stalls, drain_cycles=64)

    token, scores, last = read_scores(design, result.outputs["o_scores"])
    expected = [job.expected_scores(design) for job in folded]
    np.testing.assert_array_equal(scores, np.concatenate(expected))
    np.testing.assert_array_equal(token, np.concatenate([job.expected_tokens(design) for job in folded]))
    assert np.flatnonzero(last).tolist() == (np.cumsum(tokens) - 1).tolist()
    found = unpack_words(statistics_layout(design), result.outputs["o_statistics"])
    model = golden.ScoreStatistics()
    for index, (job, values) in enumerate(zip(jobs, expected, strict=True)):
        statistics = model.evaluate(values, job.score_fraction_bits)
        heads = slice(index * design.query_group, (index + 1) * design.query_group)
        for field in ("maximum", "upper", "lower"):
            np.testing.assert_array_equal(found[field][heads], getattr(statistics, field), err_msg=field)
    assert (result.signals["o_overflow"], result.signals["o_framing_error"]) == (0, 0)
    return result


@pytest.mark.parametrize("extreme", [False, True], ids=["normal", "extreme"])
@pytest.mark.parametrize("name", [*SHAPES, "tiny"])
def test_every_shape_is_bit_exact_with_pauses(name, extreme):
    rng = np.random.default_rng(31)
    design, _ = compiled(name)
    for trial, pause in enumerate((0.0, 0.1, 0.5)):
        jobs = [random_fold_job(design, int(rng.integers(1, 5)), rng, extreme=extreme) for _ in range(6)]
        stalls = Stalls(seed=trial, input_probability=pause, output_probability=0.6 - pause)
        check(name, jobs, stalls if trial else None)


@pytest.mark.parametrize("name", ["tiny", "smartssd_ku15p"])
@pytest.mark.parametrize("key_format", [INT8, INT4])
def test_keys_flow_at_full_rate(name, key_format):
    """Full-rate sources: key beats alone fill 95 of 100 cycles in INT8, the lanes in both formats.

    Counted from the first cycle to the last score of two jobs of 64 blocks, the first fold included.
    """
    design, _ = compiled(name)
    for head_dim in design.head_dims:
        rng = np.random.default_rng(head_dim)
        jobs = [
            random_fold_job(design, 64, rng, head_dim=head_dim, key_formats=(key_format,)) for _ in range(2)
        ]
        result = check(name, jobs)
        lanes = result.flags["o_lanes_active"]
        assert lanes.high_cycles == 128 * design.lane_beats_per_block(head_dim)
        assert lanes.high_cycles >= 0.95 * result.cycles
        assert lanes.high_cycles >= 0.99 * (lanes.last_high_cycle - lanes.first_high_cycle + 1)
        if key_format is INT8:
            assert result.ports["i_keys"].transfers >= 0.95 * result.cycles


@pytest.mark.parametrize("key_formats", [(INT8,), (INT8, INT4)], ids=["int8", "mixed"])
def test_real_keys_and_queries_are_bit_exact(key_formats):
    name = "smartssd_ku15p"
    design, _ = compiled(name)
    jobs = []
    for stream in read_trace(FIXTURE).streams:
        blocks = quantise_keys(stream.key)
        queries = stream.query.reshape(-1, stream.query.shape[-1])[:: len(stream.query) * 32]
        query = prepare_query(queries[: design.query_group])
        jobs.append(fold_job(design, query, blocks, tuple(islice(cycle(key_formats), len(blocks)))))
    check(name, jobs, Stalls(seed=len(key_formats), input_probability=0.1))


@pytest.mark.parametrize("name", ["tiny", "keys", "blocks"])
def test_latency_is_what_the_component_says(name):
    design, _ = compiled(name)
    result = check(name, [random_fold_job(design, 1, np.random.default_rng(0), head_dim=64)])
    last_beat = result.flags["o_lanes_active"].last_high_cycle
    assert result.ports["o_scores"].last_cycle - last_beat == KeyScorer(design).latency


def test_the_smallest_design_keeps_its_budget():
    report = synthesise_design(DESIGNS["tiny"], Unit.KEY_SCORER)
    assert report.problems == ()
    assert as_record(report)["unit"] == "key_scorer"
    assert "key_scorer" in list(table_lines([report]))[1]
    beside = Unit.KEY_SCORER.dsps_beside_scorer(report.design)
    assert beside == report.used.dsps - BUDGETS["tiny"].dsps > 0
    (problem,) = mapping_problems(report.design, report.used, beside + 1)
    assert problem.endswith(
        f"allowed: {16 + beside + 1} with variant mult18x18d, {beside + 1} of them beside the scorer"
    )


def test_accepted_figures_of_the_large_scorer():
    """Folding and statistics included: at least 1.7 products a DSP block, at most 80 LUTs a product."""
    design, used = DESIGNS["smartssd_ku15p"], KEY_SCORER_BUDGETS["smartssd_ku15p"]
    assert mapping_problems(design, used, Unit.KEY_SCORER.dsps_beside_scorer(design)) == []
    assert design.macs / used.dsps >= 1.7
    assert used.luts / design.macs <= 80


def test_contract_for_all_time():
    design = custom(query_group=1, bus_bytes=32, lanes=64, head_dims=(64,), block_tokens=4)
    proof = prove_stream_contract(
        lambda: KeyScorer(replace(design, variant=MacVariant.PLAIN)), cut=("$mul", "$mem_v2")
    )
    assert proof.status is Status.PROVED, proof.message
