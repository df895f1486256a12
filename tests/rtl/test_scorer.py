"""The scorer's RTL against its golden twin, its cycle formula and its stream contract."""

from __future__ import annotations

from functools import cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pytest

from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.trace.format import read_trace
from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P, LFE5U_85F
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.scorer_pipeline import pipeline_ranks
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, Stalls, pack_words, unpack_words
from nearkv_sim.golden.scorer_timing import job_timing
from nearkv_sim.scorer_job import ScorerJob, random_job, read_scores

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
        "block_tokens": 16,
    }
    return DesignConfig(**{**parameters, **changes})


PLAIN, HEADS, KEYS, BLOCKS = (
    MacVariant.PLAIN,
    MacVariant.PACKED_HEADS,
    MacVariant.PACKED_KEYS,
    MacVariant.MULT18X18D,
)
ALL = (PLAIN, HEADS, KEYS, BLOCKS)
# Which variants every shape is built in; heads do not pack alone, and 12 bits do not pack at all.
VARIANTS = {
    "group1": ({"query_group": 1}, (PLAIN, KEYS, BLOCKS)),
    "group2": ({}, ALL),
    "group3": ({"query_group": 3}, (HEADS, KEYS)),
    **{f"group{g}": ({"query_group": g}, (HEADS,)) for g in (4, 6, 7)},
    **{f"group{g}": ({"query_group": g}, (PLAIN, HEADS)) for g in (5, 8)},
    "lanes_below_bus": ({"bus_bytes": 32, "lanes": 8}, ALL),
    "lanes_above_bus": ({"bus_bytes": 16, "lanes": 32}, ALL),
    "ten_bits": ({"query_bits": 10}, ALL),
    "wide_query": ({"query_bits": 12}, (PLAIN, BLOCKS)),
    # Four lane beats a block: two whole blocks are in the pipeline behind a third.
    "blocks_below_latency": ({"bus_bytes": 32, "lanes": 64, "head_dims": (64,), "block_tokens": 4}, ALL),
}
SHAPES = {
    f"{shape}-{variant.value}": custom(
        variant=variant, device=LFE5U_85F if variant is BLOCKS else KU15P, **changes
    )
    for shape, (changes, variants) in VARIANTS.items()
    for variant in variants
}
GROUP1 = [name for name in SHAPES if name.startswith("group1-")]
GROUP2 = [name for name in SHAPES if name.startswith("group2-")]
ONE_BEAT_TOKENS = [name for name in SHAPES if name.startswith("blocks_below_latency-")]


@cache
def compiled(name: str) -> tuple[DesignConfig, CompiledComponent]:
    design = DESIGNS[name] if name in DESIGNS else SHAPES[name]
    return design, CompiledComponent(Scorer(design), name=name)


def run(name: str, job: ScorerJob, stalls: Stalls | None = None, **options):
    design, component = compiled(name)
    tokens = len(job.codes) * design.block_tokens
    result = component.run(
        job.input_words(design), {"o_scores": tokens}, stalls=stalls, drain_cycles=64, **options
    )
    return design, result


def check(name: str, job: ScorerJob, stalls: Stalls | None = None):
    design, result = run(name, job, stalls)
    token, scores, last = read_scores(design, result.outputs["o_scores"])
    np.testing.assert_array_equal(scores, job.expected_scores(design))
    np.testing.assert_array_equal(token, job.expected_tokens(design))
    assert np.flatnonzero(last).tolist() == [len(last) - 1]
    assert result.signals["o_framing_error"] == 0
    assert result.signals["o_overflow"] == 0
    return design, result


@pytest.mark.parametrize("name", GROUP1)
def test_smallest_block_by_hand(name):
    """One code of 1·16 + 2 and one of −1: scores can be worked out on paper."""
    design = SHAPES[name]
    codes = np.zeros((design.block_tokens, 64), np.int8)
    codes[0, 0], codes[3, 63] = 18, -1
    query = np.zeros((1, 64), np.int16)
    query[0, 0], query[0, 63] = 5, -7
    constants = {"shift": np.array([[2]]), "bias": np.array([[1000]])}
    for key_format, first, third in ((INT8, 5 * 18 * 4, -7 * -1 * 4), (INT4, 5 * 16 * 4, -7 * -16 * 4)):
        job = ScorerJob((key_format,), np.array([7 * 16]), (codes,), (query,), **constants)
        _, result = check(name, job)
        token, scores, _ = read_scores(design, result.outputs["o_scores"])
        expected = np.full(design.block_tokens, 1000)
        expected[0] += first
        expected[3] += third
        assert scores[:, 0].tolist() == expected.tolist()
        assert token.tolist() == list(range(112, 128))


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_bit_exact_with_pauses(name):
    rng = np.random.default_rng(11)
    design, _ = compiled(name)
    for trial, extreme in enumerate((False, True, False, False)):
        job = random_job(design, 200, rng, extreme=extreme)
        probability = (0.0, 0.3, 0.6, 0.1)[trial]
        stalls = Stalls(seed=trial, input_probability=probability, output_probability=0.6 - probability)
        check(name, job, stalls)


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_is_bit_exact_and_takes_the_predicted_cycles(name):
    rng = np.random.default_rng(5)
    design, _ = compiled(name)
    job = random_job(design, 40, rng)
    _, result = check(name, job)
    assert result.cycles == job_timing(design, job.head_dims, job.key_format).cycles
    check(name, random_job(design, 12, rng, extreme=True), Stalls(seed=3))


@pytest.mark.parametrize("key_formats", [(INT8,), (INT4,), (INT8, INT4)], ids=["int8", "int4", "mixed"])
def test_real_keys_are_bit_exact_with_pauses(key_formats):
    """Every key of the fixture, scored by eight of its own queries: 16,384 keys a case."""
    design = DESIGNS["smartssd_ku15p"]
    for stream in read_trace(FIXTURE).streams:
        blocks = quantise_keys(stream.key)
        formats = tuple(islice(cycle(key_formats), len(blocks)))
        queries = stream.query.reshape(-1, stream.query.shape[-1])[:: len(stream.query) * 32][:8]
        folded = fold_query(prepare_query(queries), blocks.headers, formats, design.query_code)
        first_token = np.arange(len(blocks)) * design.block_tokens
        job = ScorerJob(
            formats, first_token, tuple(blocks.codes), tuple(folded.codes), folded.shift, folded.bias
        )
        check("smartssd_ku15p", job, Stalls(seed=stream.layer))


@pytest.mark.parametrize("name", SHAPES)
def test_cycle_formula_equals_the_rtl(name):
    """Any mix of formats and head dimensions, short and long jobs, back to back without a reset."""
    rng = np.random.default_rng(17)
    design, _ = compiled(name)
    for blocks in (1, 1, 2, 3, 5, 8, 40, 41):
        job = random_job(design, blocks, rng)
        _, result = run(name, job)
        timing = job_timing(design, job.head_dims, job.key_format)
        lanes = result.flags["o_lanes_active"]
        assert result.cycles == timing.cycles
        assert lanes.first_high_cycle == timing.first_lane_beat
        assert lanes.last_high_cycle == timing.last_lane_beat
        assert lanes.high_cycles == timing.lane_beats


@pytest.mark.parametrize("key_formats", [(INT8,), (INT4,), (INT8, INT4)], ids=["int8", "int4", "mixed"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_lanes_work_on_995_of_1000_cycles(key_formats, head_dim):
    """Over 36 full blocks, block changes included, from the first lane beat to the last."""
    design = DESIGNS["ulx3s_85f"]
    job = random_job(design, 36, np.random.default_rng(2), key_formats=key_formats, head_dims=(head_dim,))
    _, result = check("ulx3s_85f", job)
    lanes = result.flags["o_lanes_active"]
    assert lanes.high_cycles == 36 * design.lane_beats_per_block(head_dim)
    assert lanes.high_cycles / (lanes.last_high_cycle - lanes.first_high_cycle + 1) >= 0.995


@pytest.mark.parametrize("name", [*GROUP2, "lanes_below_bus-plain", "lanes_below_bus-packed_keys", "tiny"])
def test_latency_is_what_the_component_says(name):
    design, _ = compiled(name)
    scorer = Scorer(design)
    assert scorer.pipeline_latency == pipeline_ranks(design)
    job = random_job(design, 1, np.random.default_rng(0), head_dims=(64,))
    _, result = run(name, job)
    last_beat = result.flags["o_lanes_active"].last_high_cycle
    assert result.ports["o_scores"].last_cycle - last_beat == scorer.latency


@pytest.mark.parametrize("name", [*GROUP2, *ONE_BEAT_TOKENS])
def test_a_slow_sink_stops_the_lanes_and_loses_nothing(name):
    """The sink takes a beat in few cycles: the lanes must work on fewer cycles than at full rate.

    Tokens of one lane beat fill the output queue to its last place.
    """
    job = random_job(SHAPES[name], 40, np.random.default_rng(4), head_dims=(64,))
    design, free = check(name, job)
    _, held = check(name, job, Stalls(seed=9, input_probability=0.0, output_probability=0.95))
    assert held.ports["o_scores"].blocked_cycles > free.cycles
    assert held.flags["o_lanes_active"].high_cycles == free.flags["o_lanes_active"].high_cycles
    assert held.cycles > 2 * free.cycles == 2 * job_timing(design, job.head_dims, job.key_format).cycles


@pytest.mark.parametrize("name", GROUP2)
def test_missing_queries_hold_the_scores_back(name):
    """The lanes wait for queries; they never work with what the bank held before."""
    design, component = compiled(name)
    job = random_job(design, 2, np.random.default_rng(6))
    words = job.input_words(design)
    with pytest.raises(CosimDeadlock, match="o_scores 16 of 32 beats"):
        component.run(
            {**words, "i_query": words["i_query"][:-1]},
            {"o_scores": 2 * design.block_tokens},
            max_idle_cycles=500,
        )
    check(name, job)


@pytest.mark.parametrize("name", GROUP2)
@pytest.mark.parametrize("port", ["i_keys", "i_query"])
def test_a_misplaced_last_is_flagged(name, port):
    design, component = compiled(name)
    job = random_job(design, 2, np.random.default_rng(8))
    words = job.input_words(design)
    words[port] = words[port].copy()
    layout = key_layout(design) if port == "i_keys" else query_layout(design)
    words[port][3, -1] |= 1 << layout["last"].offset % 32
    result = component.run(words, {"o_scores": 2 * design.block_tokens})
    assert result.signals["o_framing_error"] == 1
    component.reset()
    check(name, job)


@pytest.mark.parametrize("name", GROUP2)
def test_a_head_dim_beyond_the_list_counts_as_the_last(name):
    """The compiled netlist would read 0 from an array there, and never end the token."""
    design, component = compiled(name)
    job = random_job(design, 3, np.random.default_rng(6), head_dims=(256,))
    words = job.input_words(design)
    fields = unpack_words(command_layout(design), words["i_block"])
    assert set(fields["head_dim_index"]) == {len(design.head_dims) - 1}
    fields["head_dim_index"] = np.full(3, 3)
    words["i_block"] = pack_words(command_layout(design), **fields)
    result = component.run(words, {"o_scores": 3 * design.block_tokens})
    _, scores, _ = read_scores(design, result.outputs["o_scores"])
    np.testing.assert_array_equal(scores, job.expected_scores(design))


@pytest.mark.parametrize("name", GROUP2)
def test_a_score_beyond_32_bits_is_flagged(name):
    design, component = compiled(name)
    job = random_job(design, 1, np.random.default_rng(8), extreme=True)
    too_large = ScorerJob(
        job.key_format, job.first_token, job.codes, job.query_codes, job.shift, np.full((1, 2), 2**31 - 1)
    )
    assert component.run(too_large.input_words(design), {"o_scores": 16}).signals["o_overflow"] == 1
    component.reset()
    check(name, job)


@pytest.mark.parametrize("shape", ["group2", "ten_bits", "lanes_above_bus"])
def test_variants_take_the_same_lane_beats_in_the_same_cycles(shape):
    """Only the distance to the scores differs, by the ranks that the variant has more than the plain one."""
    job = random_job(SHAPES[f"{shape}-plain"], 9, np.random.default_rng(21))
    plain_design, plain = run(f"{shape}-plain", job)
    for variant in (HEADS, KEYS, BLOCKS):
        design, result = run(f"{shape}-{variant.value}", job)
        assert (
            result.flags["o_lanes_active"].first_high_cycle == plain.flags["o_lanes_active"].first_high_cycle
        )
        assert pipeline_ranks(design) > pipeline_ranks(plain_design)
        np.testing.assert_array_equal(result.outputs["o_scores"], plain.outputs["o_scores"])


def test_timing_arguments():
    design = SHAPES["group1-plain"]
    with pytest.raises(ValueError, match="0 head_dims"):
        job_timing(design, [], [])
    with pytest.raises(ValueError, match="1 head_dims and 2"):
        job_timing(design, [64], [INT8, INT8])
    with pytest.raises(ValueError, match="head_dim is 96"):
        job_timing(design, [96], [INT8])
