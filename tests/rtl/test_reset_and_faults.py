"""A reset in mid-job, and a `last` in the wrong place, leave nothing behind that the next job could see."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from nearkv_hdl.attention.fold_headers import header_layout
from nearkv_hdl.attention.fold_queries import mantissa_layout
from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.attention.row_scorer import RowScorer, row_job_layout, row_layout
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.attention.score_statistics import statistics_job_layout
from nearkv_hdl.attention.score_statistics_report import statistics_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.stream.with_reset import WithReset
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.fold_job import FoldJob, fold_words, random_fold_job
from nearkv_sim.golden.row_scorer import RowScorer as GoldenRowScorer
from nearkv_sim.golden.score_statistics import ScoreStatistics
from nearkv_sim.scorer_job import read_scores

# Blocks shorter than the pipeline: a broken-off job leaves tokens in every rank of it.
DESIGN = DesignConfig(
    name="short",
    device=KU15P,
    bus_bytes=16,
    lanes=16,
    query_group=1,
    head_dims=(64,),
    clock_hz=1,
    block_tokens=4,
    variant=MacVariant.PACKED_KEYS,
)
SETTLE_CYCLES = 2  # the reset's cycle, and one more


@cache
def compiled(kind: type) -> CompiledComponent:
    inner = KeyScorer(DESIGN) if kind is KeyScorer else RowScorer(DESIGNS["tiny"])
    return CompiledComponent(WithReset(inner), name=f"reset_{kind.__name__}", flatten=False)


def run(kind: type, words, outputs, *, reset: bool, stalls: Stalls | None = None, drain_cycles: int = 60):
    gaps = {}
    if reset:
        gaps = {name: SETTLE_CYCLES * (np.arange(len(beats)) == 0) for name, beats in words.items()}
        words = {**words, "i_reset": np.zeros((1, 1), np.uint32)}
    return compiled(kind).run(words, outputs, gaps=gaps, stalls=stalls, drain_cycles=drain_cycles)


def job_words(job: FoldJob):
    active = {"active": [(1 << DESIGN.query_group) - 1]}
    return {
        **fold_words(DESIGN, [job]),
        "i_keys": job.folded(DESIGN).input_words(DESIGN)["i_keys"],
        "i_job": pack_words(
            statistics_job_layout(DESIGN), fraction_bits=job.score_fraction_bits[None], **active
        ),
    }


def check_job(job: FoldJob, *, reset: bool, framing_error: bool, stalls: Stalls | None = None) -> None:
    folded = job.folded(DESIGN)
    outputs = {"o_scores": len(job.blocks) * DESIGN.block_tokens, "o_statistics": DESIGN.query_group}
    result = run(KeyScorer, job_words(job), outputs, reset=reset, stalls=stalls)
    token, scores, last = read_scores(DESIGN, result.outputs["o_scores"])
    expected = folded.expected_scores(DESIGN)
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(token, folded.expected_tokens(DESIGN))
    assert np.flatnonzero(last).tolist() == [len(last) - 1]
    found = unpack_words(statistics_layout(DESIGN), result.outputs["o_statistics"])
    statistics = ScoreStatistics().evaluate(expected, job.score_fraction_bits)
    for field in ("maximum", "upper", "lower"):
        np.testing.assert_array_equal(found[field], getattr(statistics, field), err_msg=field)
    assert (result.signals["o_overflow"], result.signals["o_framing_error"]) == (0, framing_error)


def with_a_wrong_last(words, layout, beat: int):
    wrong = words.copy()
    wrong[beat, layout["last"].offset // 32] ^= 1 << layout["last"].offset % 32
    return wrong


# What of a job of two blocks has come when it is broken off: beats of each stream, None for all.
BROKEN_OFF = {
    "mantissas": {"i_set": 1, "i_mantissas": 3},
    "headers": {"i_set": None, "i_mantissas": None, "i_block": 1, "i_headers": 5},
    "no keys": {"i_keys": 0},
    "high plane": {"i_keys": 5},
    "low plane": {"i_keys": 11},
    "second block": {"i_keys": 29},
    "no job": {"i_job": 0},
    "statistics not taken": {},
}


@pytest.mark.parametrize("where", BROKEN_OFF)
def test_a_reset_in_mid_job_is_a_new_start(where):
    rng = np.random.default_rng(len(where))
    first = random_fold_job(DESIGN, 2, rng, key_formats=(KeyFormat.INT8,))
    second, third = (random_fold_job(DESIGN, blocks, rng) for blocks in (3, 2))
    words, kept = job_words(first), BROKEN_OFF[where]
    words["i_mantissas"] = with_a_wrong_last(words["i_mantissas"], mantissa_layout(DESIGN), 1)
    named_only = "i_set" in kept  # else all other streams come whole
    beats = {name: kept.get(name, 0 if named_only else None) for name in words}
    part = {name: words[name][:count] for name, count in beats.items()}
    broken = run(KeyScorer, part, {}, reset=False, drain_cycles=0)
    assert broken.signals["o_framing_error"] == 1
    check_job(second, reset=True, framing_error=False)
    check_job(third, reset=False, framing_error=False, stalls=Stalls(seed=1))


@pytest.mark.parametrize("port", ["i_mantissas", "i_headers", "i_keys"])
def test_the_job_after_a_wrong_last_is_right_without_a_reset(port):
    """Counted lengths win: a `last` too early, or missing, spoils neither its own job nor the next one."""
    rng = np.random.default_rng(5)
    layout = {"i_mantissas": mantissa_layout, "i_headers": header_layout, "i_keys": key_layout}[port](DESIGN)
    jobs = [random_fold_job(DESIGN, 2, rng) for _ in range(4)]
    compiled(KeyScorer).reset()
    outputs = {"o_scores": 2 * DESIGN.block_tokens, "o_statistics": DESIGN.query_group}
    for beat, bad, good in ((1, *jobs[:2]), (-1, *jobs[2:])):
        words = job_words(bad)
        result = run(
            KeyScorer, {**words, port: with_a_wrong_last(words[port], layout, beat)}, outputs, reset=False
        )
        scores = read_scores(DESIGN, result.outputs["o_scores"])[1]
        np.testing.assert_array_equal(scores, bad.folded(DESIGN).expected_scores(DESIGN))
        check_job(good, reset=False, framing_error=True)


@pytest.mark.parametrize(("query_beats", "key_beats"), [(0, 0), (9, 0), (32, 0), (32, 7), (32, 40)])
def test_a_reset_between_rows_is_a_new_start(query_beats, key_beats):
    design, rng = DESIGNS["tiny"], np.random.default_rng(4)
    layout = row_layout(design)

    def words(query, keys):
        data = [rows.view(np.uint8).reshape(-1, design.bus_bytes) for rows in (query, keys)]
        frames = [pack_words(layout, data=d, last=np.arange(len(d)) == len(d) - 1) for d in data]
        job = pack_words(row_job_layout(design), first_token=[7], head_dim_index=[0])
        return {"i_job": job, "i_query": frames[0], "i_keys": frames[1]}

    jobs = [
        [rng.standard_normal((rows, 64)).astype(np.float16) for rows in (design.query_group, tokens)]
        for tokens in (4, 5)
    ]
    first = words(*jobs[0])
    first["i_query"][0, 0] = 0x7C00  # an infinity
    part = {"i_job": first["i_job"], "i_query": first["i_query"][:query_beats]}
    part["i_keys"] = first["i_keys"][:key_beats]
    run(RowScorer, part, {}, reset=False, drain_cycles=0)
    for reset in (True, False):
        result = run(RowScorer, words(*jobs[1]), {"o": 5}, reset=reset)
        fields = unpack_words(score_layout(design), result.outputs["o"])
        np.testing.assert_array_equal(fields["scores"], GoldenRowScorer(design).score(*jobs[1])[0])
        assert fields["token"].tolist() == [7, 8, 9, 10, 11]
        assert fields["last"].tolist() == [0, 0, 0, 0, 1]
        assert (result.signals["o_invalid"], result.signals["o_framing_error"]) == (0, 0)
