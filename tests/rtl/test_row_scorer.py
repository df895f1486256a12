"""FP16 row scorer: golden model against float64 and by hand, RTL against the golden model and the unit's."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.format import read_trace
from nearkv_hdl.attention.row_scorer import RowScorer, row_job_layout, row_layout
from nearkv_hdl.attention.row_scorer_products import channels_per_beat, row_beats
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.attention import LOGIT
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, Stalls
from nearkv_sim.cosim.words import pack_words, unpack_words
from nearkv_sim.golden import row_scorer as golden

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
LOG2_E = 1.4426950408889634
MAX_IDLE = 300


def custom(name: str, **changes) -> DesignConfig:
    parameters = {
        "name": name,
        "device": KU15P,
        "bus_bytes": 16,
        "lanes": 16,
        "query_group": 2,
        "head_dims": (64, 128, 256),
        "clock_hz": 100_000_000,
        "block_tokens": 16,
    }
    return DesignConfig(**{**parameters, **changes})


# One beat a row, two, and many; one query head to eight; one head dimension or several.
SHAPES = {
    "tiny": DESIGNS["tiny"],
    "narrow": custom("narrow", bus_bytes=4, lanes=4, query_group=1),
    "group3": custom("group3", bus_bytes=8, query_group=3),
    "group8": custom("group8", bus_bytes=4, lanes=4, query_group=8),
    "one_beat": custom("one_beat", bus_bytes=128, lanes=64, query_group=1, head_dims=(64, 256)),
}
SMALL = ("tiny", "narrow", "group3")


@cache
def compiled(name: str) -> CompiledComponent:
    return CompiledComponent(RowScorer(SHAPES[name]), name=f"rows-{name}", flatten=False)


def beats(design: DesignConfig, rows: np.ndarray) -> np.ndarray:
    """Bytes of rows in bus beats, uint8 [beats, bus_bytes]."""
    return np.ascontiguousarray(rows.astype("<f2")).view(np.uint8).reshape(-1, design.bus_bytes)


def flags(*lengths: int) -> np.ndarray:
    """1 on the last beat of every stretch."""
    last = np.zeros(sum(lengths), np.int64)
    last[np.cumsum(lengths) - 1] = 1
    return last


def words(design: DesignConfig, jobs, first_token=()):
    """Beats of every input for jobs of (query [group, head_dim], keys [tokens, head_dim])."""
    first = np.zeros(len(jobs), np.int64) if not len(first_token) else np.array(first_token)
    queries, keys = ([beats(design, job[part]) for job in jobs] for part in (0, 1))
    index = [design.head_dims.index(query.shape[1]) for query, _ in jobs]
    layout = row_layout(design)
    return {
        "i_job": pack_words(row_job_layout(design), first_token=first, head_dim_index=np.array(index)),
        "i_query": pack_words(layout, data=np.concatenate(queries), last=flags(*map(len, queries))),
        "i_keys": pack_words(layout, data=np.concatenate(keys), last=flags(*map(len, keys))),
    }


def run(name: str, jobs, stalls=None, first_token=(), **options):
    design = SHAPES[name]
    tokens = sum(len(keys) for _, keys in jobs)
    compiled(name).reset()  # of the flags, which say what came since
    result = compiled(name).run(
        words(design, jobs, first_token), {"o": tokens}, stalls=stalls, drain_cycles=60, **options
    )
    return unpack_words(score_layout(design), result.outputs["o"]), result


def check(name: str, jobs, stalls=None, first_token=()):
    fields, result = run(name, jobs, stalls, first_token)
    model = golden.RowScorer(SHAPES[name])
    expected, saturated = zip(*(model.score(*job) for job in jobs), strict=True)
    np.testing.assert_array_equal(fields["scores"], np.concatenate(expected))
    lengths = [len(keys) for _, keys in jobs]
    np.testing.assert_array_equal(fields["last"], flags(*lengths))
    first = first_token if len(first_token) else [0] * len(jobs)
    tokens = np.concatenate([f + np.arange(n) for f, n in zip(first, lengths, strict=True)])
    np.testing.assert_array_equal(fields["token"], tokens % (1 << 32))
    assert bool(result.signals["o_saturated"]) == bool(sum(saturated))
    assert not any(result.signals[flag] for flag in ("o_invalid", "o_overflow", "o_framing_error"))
    return result


def random_job(rng, design: DesignConfig, tokens: int, head_dim: int, scale: float = 1.0):
    shape = (design.query_group, head_dim)
    query, keys = rng.standard_normal(shape) * scale, rng.standard_normal((tokens, head_dim)) * scale
    return query.astype(np.float16), keys.astype(np.float16)


def any_finite(rng, shape) -> np.ndarray:
    """FP16 numbers of every exponent, subnormal ones and both zeros included, at most 2^5 in magnitude."""
    exponent = rng.integers(0, 20, shape)
    bits = rng.integers(0, 2, shape) << 15 | exponent << 10 | rng.integers(0, 1 << 10, shape)
    return bits.astype(np.uint16).view(np.float16)


class TestGolden:
    def test_a_row_worked_out_on_paper(self):
        """head_dim 64: scale = round(2^24·log2(e)/8) = 3025551; 2·3 = 6 → rhu(6·2^16·3025551, 24) = 70911."""
        query, keys = np.zeros((2, 2, 64), np.float16)
        query[0, 0], query[1, 63], keys[0, 0], keys[1, 63] = 2, -1, 3, 0.5
        scores, saturated = golden.RowScorer(DESIGNS["tiny"]).score(query, keys)
        assert scores.tolist() == [[70911, 0], [0, -5909]]
        assert saturated == 0

    @pytest.mark.parametrize("head_dim", [64, 128, 256])
    def test_scores_are_within_the_stated_error_of_float64(self, head_dim):
        design = SHAPES["group3"]
        query, keys = random_job(np.random.default_rng(head_dim), design, 2000, head_dim, 2.0)
        scores, _ = golden.RowScorer(design).score(query, keys)
        dots = keys.astype(np.float64) @ query.astype(np.float64).T
        scale = LOG2_E / np.sqrt(head_dim)
        bound = (head_dim / 2 * scale + 0.5) * 2**-16 + np.abs(dots).max() * 2**-25
        assert np.abs(scores / 65536 - dots * scale).max() <= bound

    def test_bad_rows_are_refused(self):
        model = golden.RowScorer(DESIGNS["tiny"])
        query, keys = np.zeros((2, 64), np.float16), np.zeros((3, 64), np.float16)
        with pytest.raises(
            ValueError, match=r"query is \[1, 64\] and keys are \[3, 64\]; allowed: \[2, head_dim\]"
        ):
            model.score(query[:1], keys)
        with pytest.raises(ValueError, match="head_dim is 32"):
            model.score(query[:, :32], keys[:, :32])
        keys[1, 5] = np.inf
        with pytest.raises(ValueError, match="rows hold Inf or NaN"):
            model.score(query, keys)


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_worked_out_on_paper(name):
    """First and last channel of the smallest head dimension."""
    design = SHAPES[name]
    query, keys = np.zeros((design.query_group, 64), np.float16), np.zeros((3, 64), np.float16)
    query[:, 0], query[-1, 63], keys[0, 0], keys[1, 63] = 2, -1, 3, 0.5
    fields, _ = run(name, [(query, keys)], first_token=[7])
    expected = np.zeros((3, design.query_group), np.int64)
    expected[0], expected[1, -1] = 70911, -5909
    assert fields["scores"].tolist() == expected.tolist()
    assert fields["token"].tolist() == [7, 8, 9]
    assert fields["last"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("pauses", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("name", SHAPES)
def test_jobs_of_every_head_dim_with_pauses(name, pauses):
    """1 to 40 rows a job, head dimensions mixed, tokens that wrap, back to back."""
    design, rng = SHAPES[name], np.random.default_rng(int(10 * pauses))
    jobs = []
    for number, tokens in enumerate([1, 1, 2, *rng.integers(1, 40, 12)]):
        head_dim = design.head_dims[number % len(design.head_dims)]
        jobs.append(random_job(rng, design, int(tokens), head_dim, rng.choice([0.05, 1.0, 6.0])))
    first = rng.integers(0, 1 << 32, len(jobs))
    stalls = Stalls(seed=5, input_probability=pauses, output_probability=pauses) if pauses else None
    check(name, jobs, stalls, first)


def test_a_head_dim_beyond_the_list_counts_as_the_last():
    design = SHAPES["tiny"]
    job = random_job(np.random.default_rng(6), design, 5, 64)
    beats_in = words(design, [job])
    beats_in["i_job"] = pack_words(
        row_job_layout(design), first_token=np.array([0]), head_dim_index=np.array([1])
    )
    result = compiled("tiny").run(beats_in, {"o": 5}, drain_cycles=60)
    scores = unpack_words(score_layout(design), result.outputs["o"])["scores"]
    np.testing.assert_array_equal(scores, golden.RowScorer(design).score(*job)[0])


@pytest.mark.parametrize("name", SMALL)
def test_numbers_of_every_exponent(name):
    design, rng = SHAPES[name], np.random.default_rng(3)
    for head_dim in design.head_dims:
        shape = (design.query_group, head_dim)
        check(name, [(any_finite(rng, shape), any_finite(rng, (60, head_dim)))])


@pytest.mark.parametrize("name", SMALL)
def test_scores_beyond_q15_16_saturate_and_say_so(name):
    design = SHAPES[name]
    query, keys = np.full((design.query_group, 64), 400, np.float16), np.full((2, 64), 400, np.float16)
    keys[1] *= -1
    fields, result = run(name, [(query, keys)])
    assert fields["scores"].tolist() == [[LOGIT.max] * design.query_group, [LOGIT.min] * design.query_group]
    assert result.signals["o_saturated"] == 1
    check(name, [(query, keys / 16)])


@pytest.mark.parametrize("where", ["query", "keys"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("channel", [0, 3, 63])
def test_inf_and_nan_are_flagged(where, value, channel):
    query, keys = random_job(np.random.default_rng(1), SHAPES["tiny"], 4, 64)
    (query if where == "query" else keys)[-1, channel] = value
    _, result = run("tiny", [(query, keys)])
    assert result.signals["o_invalid"] == 1
    check("tiny", [random_job(np.random.default_rng(2), SHAPES["tiny"], 4, 64)])


def test_a_sum_beyond_48_bits_is_flagged():
    largest = np.full((2, 64), 65504, np.float16)
    _, result = run("tiny", [(largest, largest)])
    assert result.signals["o_overflow"] == 1


def test_a_misplaced_last_is_flagged_and_the_row_counted_to_its_end():
    design, rng = SHAPES["tiny"], np.random.default_rng(9)
    jobs = [random_job(rng, design, 3, 64)]
    stop = row_layout(design)["last"].offset
    # In the middle of the last row: the job ends with that row all the same.
    moved = words(design, jobs)
    moved["i_keys"][-1, stop // 32] = 0
    moved["i_keys"][-4, stop // 32] = 1 << stop % 32
    late = words(design, jobs)
    late["i_query"][-1, stop // 32] = 0
    for beats_in in (moved, late):
        compiled("tiny").reset()
        result = compiled("tiny").run(beats_in, {"o": 3}, drain_cycles=60)
        assert result.signals["o_framing_error"] == 1
        fields = unpack_words(score_layout(design), result.outputs["o"])
        np.testing.assert_array_equal(fields["scores"], golden.RowScorer(design).score(*jobs[0])[0])
        assert fields["last"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", SHAPES)
def test_latency_interval_and_gap_are_what_the_component_says(name):
    design, unit = SHAPES[name], RowScorer(SHAPES[name])
    for head_dim in design.head_dims:
        row = row_beats(design, head_dim)
        assert row * channels_per_beat(design) == head_dim
        result = check(name, [random_job(np.random.default_rng(0), design, 50, head_dim)])
        job, keys, scores = (result.ports[port] for port in ("i_job", "i_keys", "o"))
        assert keys.first_cycle - job.first_cycle == unit.job_cycles(head_dim)
        assert keys.last_cycle - keys.first_cycle == 50 * row * unit.interval - 1
        assert scores.last_cycle - keys.last_cycle == unit.latency
        assert scores.last_cycle - scores.first_cycle == 49 * row


@pytest.mark.parametrize("name", SMALL)
def test_a_stalled_sink_fills_the_buffer_and_no_more(name):
    design = SHAPES[name]
    jobs = [random_job(np.random.default_rng(4), design, 60, 64)]
    row, unit = row_beats(design, 64), RowScorer(design)
    taken = (unit.capacity + 1) * row - 1  # of the next row all but its last beat
    with pytest.raises(CosimDeadlock, match=f"i_keys {taken} of {60 * row} beats"):
        compiled(name).run(words(design, jobs), {}, max_idle_cycles=MAX_IDLE)
    check(name, jobs)


def test_real_keys_are_bit_exact_with_pauses():
    """Keys of the fixture by queries of their own; scores are those of a processing unit."""
    for stream in read_trace(FIXTURE).streams[:2]:
        queries = stream.query.reshape(-1, stream.query.shape[-1])
        queries = queries[:: len(queries) // 8][:8]
        check("group8", [(queries, stream.key[:1024])], Stalls(seed=stream.layer))
