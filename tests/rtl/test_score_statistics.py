"""Score statistics: the golden model against float64 and mpmath, the RTL against the golden model."""

from __future__ import annotations

import itertools
from functools import cache

import mpmath
import numpy as np
import pytest

from nearkv.codec.score_merge import HeadStatistics, merge_statistics
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.attention.score_statistics import ScoreStatistics, statistics_job_layout
from nearkv_hdl.attention.score_statistics_report import statistics_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P
from nearkv_hdl.spec.exp_table import POLYNOMIALS
from nearkv_hdl.spec.score_statistics import STATISTICS_TOKENS
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, Stalls
from nearkv_sim.cosim.words import pack_words, unpack_words
from nearkv_sim.golden import score_statistics as golden

LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
ALL_L = range(-24, 25)
ODD_GROUP = DesignConfig(
    name="odd_group",
    device=KU15P,
    bus_bytes=16,
    lanes=16,
    query_group=3,
    head_dims=(64,),
    clock_hz=100_000_000,
    block_tokens=16,
)
SHAPES = {
    "tiny": (DESIGNS["tiny"], 2),
    "group1": (DESIGNS["ulx3s_85f"], 3),
    "odd_group": (ODD_GROUP, 4),
    "group8": (DESIGNS["smartssd_ku15p"], 2),
}
FIELDS = ("maximum", "upper", "lower")


@cache
def compiled(name: str) -> CompiledComponent:
    return CompiledComponent(ScoreStatistics(*SHAPES[name]), name=f"statistics-{name}")


def random_scores(rng, tokens: int, fraction_bits) -> np.ndarray:
    """Scores with groups of all distances: near the maximum, a group or two below, anywhere."""
    columns = []
    for bits in fraction_bits:
        binade = 2.0**bits
        top = rng.uniform(-40, 40) * binade
        spread = rng.choice([0.5, 8, 40, 100, 1e9], tokens) * binade
        columns.append(np.clip(np.floor(top - spread * rng.random(tokens)), LOWEST, HIGHEST))
    return np.stack(columns, axis=1).astype(np.int64)


def words(name: str, jobs, active=None):
    """Beats of both inputs for jobs of (scores [tokens, heads], L [heads])."""
    design, _ = SHAPES[name]
    everyone = (1 << design.query_group) - 1
    job_words = pack_words(
        statistics_job_layout(design),
        fraction_bits=np.array([bits for _, bits in jobs]),
        active=np.full(len(jobs), everyone if active is None else active),
    )
    scores = np.concatenate([scores for scores, _ in jobs])
    last = np.zeros(len(scores), np.int64)
    last[np.cumsum([len(scores) for scores, _ in jobs]) - 1] = 1
    token = (np.arange(len(scores)) * 2654435761) % (1 << 32)
    score_words = pack_words(score_layout(design), token=token, scores=scores, last=last)
    return {"i_job": job_words, "i": score_words}


def run(name: str, jobs, stalls=None, active=None, **options):
    """The statistics' fields, and the run; the scores must have passed unchanged."""
    design, _ = SHAPES[name]
    beats = words(name, jobs, active)
    outputs = {"o": len(beats["i"]), "o_statistics": len(jobs) * design.query_group}
    result = compiled(name).run(beats, outputs, stalls=stalls, drain_cycles=60, **options)
    np.testing.assert_array_equal(result.outputs["o"], beats["i"])
    fields = unpack_words(statistics_layout(design), result.outputs["o_statistics"])
    np.testing.assert_array_equal(fields["head"], np.tile(np.arange(design.query_group), len(jobs)))
    np.testing.assert_array_equal(fields["last"], fields["head"] == design.query_group - 1)
    return fields, result


def check(name: str, jobs, stalls=None, **options):
    fields, result = run(name, jobs, stalls, **options)
    model = golden.ScoreStatistics(SHAPES[name][1])
    expected = [model.evaluate(scores, bits) for scores, bits in jobs]
    for field in FIELDS:
        np.testing.assert_array_equal(
            fields[field], np.concatenate([getattr(e, field) for e in expected]), err_msg=field
        )
    assert not fields["overflow"].any()
    assert result.signals["o_invalid"] == 0
    return result


class TestGolden:
    def test_a_job_worked_out_on_paper(self):
        # L = 1: x = 3, 2.5, 1, −30 (group −1). 2^2.5 = 5.6569 → 4096·5.6569 = 23170; floor(…·2^-3) per token.
        found = golden.ScoreStatistics(3).evaluate([[6], [5], [2], [-60]], [1])
        assert found.maximum.tolist() == [6]
        root = golden.ScoreStatistics(3).weights[1 << 15]
        assert abs(int(root) / 4096 - 2**0.5) < 2**-12
        assert found.upper.tolist() == [4096 * 8 + int(root) * 4 + 4096 * 2]
        assert found.lower.tolist() == [4096 << 2]

    @pytest.mark.parametrize("degree", POLYNOMIALS)
    def test_sums_are_within_the_stated_error_of_float64(self, degree):
        rng = np.random.default_rng(degree)
        bits = np.array([*ALL_L])
        scores = random_scores(rng, 3000, bits)
        found = golden.ScoreStatistics(degree).evaluate(scores, bits)
        below = np.ldexp((scores - scores.max(axis=0)).astype(np.float64), -bits)
        exact = np.exp2(below).sum(axis=0)
        # The same sum relative to 2^x_max: x_max mod 32 above the group's lowest power.
        position = np.ldexp(scores.max(axis=0).astype(np.float64), -bits) % 32
        ours = (found.upper + np.ldexp(found.lower.astype(np.float64), -32)) * np.exp2(-12 - position)
        polynomial = POLYNOMIALS[degree].accuracy.max_relative_error
        error = ours / exact - 1
        assert error.max() <= polynomial + 1e-9
        assert error.min() >= -(polynomial + 2**-12 + 2**-16 + len(scores) * 2**-32)
        assert np.abs(error).max() > 1e-6  # it is an approximation, and measured as one

    def test_a_sum_against_mpmath(self):
        scores = random_scores(np.random.default_rng(5), 400, [20])
        found = golden.ScoreStatistics(6).evaluate(scores, [20])
        with mpmath.workprec(200):
            exact = mpmath.fsum(mpmath.mpf(2) ** mpmath.ldexp(int(s), -20) for s in scores[:, 0])
            group = int(found.maximum[0]) >> 25
            total = (int(found.upper[0]) << 32) + int(found.lower[0])
            error = mpmath.ldexp(total, 32 * group - 44) / exact - 1
        assert -(2**-12 + 2**-15) < error < 2**-15

    def test_order_does_not_matter_and_tiles_merge_exactly(self):
        rng = np.random.default_rng(8)
        bits = np.array([*ALL_L])
        scores = random_scores(rng, 500, bits)
        model = golden.ScoreStatistics()
        whole = model.evaluate(scores, bits)
        for _ in range(5):
            shuffled = rng.permutation(scores, axis=0)
            cuts = np.sort(rng.integers(0, 501, 6))
            tiles = [model.evaluate(part, bits) for part in np.split(shuffled, cuts)]
            for found in (model.evaluate(shuffled, bits), merge_statistics(tiles)):
                assert_equal(found, whole)

    def test_the_largest_job_fits_and_a_larger_one_is_refused(self):
        scores = np.full((STATISTICS_TOKENS, 1), HIGHEST)  # group's highest binade, f = 1 − 2^-16
        found = golden.ScoreStatistics().evaluate(scores, [16])
        weight = int(golden.ScoreStatistics().weights[-1])
        assert int(found.upper[0]) == STATISTICS_TOKENS * weight << 31 < 1 << 64
        with pytest.raises(ValueError, match="job has 1048577 tokens; allowed: up to 1048576"):
            golden.ScoreStatistics().evaluate(np.zeros((STATISTICS_TOKENS + 1, 1), np.int64), [0])

    @pytest.mark.parametrize("bits", [-25, 25])
    def test_an_impossible_l_is_refused(self, bits):
        with pytest.raises(ValueError, match=f"fraction_bits is {bits}; allowed: -24 to 24"):
            golden.ScoreStatistics().evaluate([[1]], [bits])


def assert_equal(found: HeadStatistics, expected: HeadStatistics) -> None:
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(found, field), getattr(expected, field), err_msg=field)


@pytest.mark.parametrize("name", SHAPES)
def test_a_job_worked_out_on_paper(name):
    """L = 0: 2^5 + 2^33 + 2^33 and, two groups below, 2^-40, which is left out."""
    heads = SHAPES[name][0].query_group
    scores = np.repeat([[5], [33], [-40], [33]], heads, axis=1)
    fields, _ = run(name, [(scores, [0] * heads)])
    assert fields["maximum"].tolist() == [33] * heads
    assert fields["upper"].tolist() == [2 * (4096 << 1)] * heads
    assert fields["lower"].tolist() == [4096 << 5] * heads


@pytest.mark.parametrize("pauses", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("name", SHAPES)
def test_random_jobs_of_every_l_with_pauses(name, pauses):
    """Jobs of 1 to 200 tokens back to back; L of every value comes by for every head."""
    rng = np.random.default_rng(int(10 * pauses))
    heads = SHAPES[name][0].query_group
    jobs = []
    for number, tokens in enumerate([1, 1, 2, 3, *rng.integers(1, 200, 45)]):
        bits = [ALL_L[(number + 7 * head) % len(ALL_L)] for head in range(heads)]
        jobs.append((random_scores(rng, tokens, bits), bits))
    stalls = Stalls(seed=3, input_probability=pauses, output_probability=pauses) if pauses else None
    check(name, jobs, stalls)


@pytest.mark.parametrize("bits", ALL_L)
def test_extremes_ties_and_neighbouring_groups(bits):
    """All scores equal, both ends of the range, ascending and descending through several groups."""
    ends = np.array([LOWEST, HIGHEST, LOWEST + 1, HIGHEST - 1, 0, -1])
    unit = 2.0 ** (bits + 5)  # a group
    steps = np.floor(np.arange(-4, 4, 0.125) * unit)
    steps = np.unique(np.clip(steps, LOWEST, HIGHEST).astype(np.int64))
    columns = [np.full(50, value) for value in ends]
    columns += [ends, ends[::-1], steps, steps[::-1], steps[::2], np.repeat(steps[:9], 3)]
    jobs = [(np.stack([column, -1 - column], axis=1), [bits, bits]) for column in columns]
    check("tiny", jobs)


def test_every_order_of_five_groups():
    """Rises by one group, by several, and falls, in every order of five tokens."""
    levels = np.array([0, 32, 64, 96, 160])
    jobs = [
        (np.stack([np.array(order), np.array(order) // 3], axis=1), [0, 0])
        for order in itertools.permutations(levels)
    ]
    check("tiny", jobs)


def test_a_head_that_is_not_active_reports_nothing():
    rng = np.random.default_rng(2)
    bits = [3, 20, -2, 7, 24, 0, 15, 11]
    scores = random_scores(rng, 90, bits)
    model = golden.ScoreStatistics(2)
    for active in (0b1111_1111, 0b0110_1001, 0):
        fields, _ = run("group8", [(scores, bits)], active=active)
        expected = model.evaluate(scores, bits)
        for head in range(8):
            found = [int(fields[field][head]) for field in FIELDS]
            if active >> head & 1:
                assert found == [int(getattr(expected, field)[head]) for field in FIELDS]
            else:
                assert found == [LOWEST, 0, 0]


def test_latency_interval_and_gap_are_what_the_component_says():
    for name, (design, degree) in SHAPES.items():
        unit = ScoreStatistics(design, degree)
        heads = design.query_group
        job = (random_scores(np.random.default_rng(0), 70, [4] * heads), [4] * heads)
        result = check(name, [job])
        tokens, statistics = result.ports["i"], result.ports["o_statistics"]
        assert tokens.first_cycle - result.ports["i_job"].first_cycle == unit.job_latency
        assert tokens.last_cycle - tokens.first_cycle == 69 * unit.interval
        assert result.ports["o"].first_cycle == tokens.first_cycle
        assert statistics.first_cycle - tokens.last_cycle == unit.latency
        assert statistics.last_cycle - statistics.first_cycle == heads - 1
        # Two jobs: the second's tokens follow after the gap.
        result = check(name, [job, job])
        assert result.ports["i"].last_cycle - result.ports["i"].first_cycle == 139 + unit.job_gap


def test_statistics_not_taken_hold_back_the_next_job_only():
    job = (np.ones((20, 2), np.int64), [0, 0])
    beats = words("tiny", [job, job])
    with pytest.raises(CosimDeadlock, match="o 20 of 40 beats"):
        compiled("tiny").run(beats, {"o": 40}, max_idle_cycles=100)
    check("tiny", [job, job])


def test_no_score_passes_before_its_job():
    job = (np.ones((3, 2), np.int64), [0, 0])
    with pytest.raises(CosimDeadlock, match="o 0 of 3 beats"):
        compiled("tiny").run({"i": words("tiny", [job])["i"]}, {"o": 3}, max_idle_cycles=100)
    check("tiny", [job])


def test_the_largest_job_is_exact_and_one_token_more_is_flagged():
    """2^20 tokens of the largest weight in the group's highest binade: 64 bits just suffice."""
    full = (np.full((STATISTICS_TOKENS, 1), HIGHEST), [16])
    check("group1", [full])
    more = (np.full((STATISTICS_TOKENS + 1, 1), 0), [16])
    fields, _ = run("group1", [more, (np.array([[7]]), [16])])
    assert fields["overflow"].tolist() == [1, 0]


def test_an_impossible_l_is_flagged():
    fields, result = run("tiny", [(np.array([[1, 1]]), [0, 25])])
    assert result.signals["o_invalid"] == 1
    assert fields["maximum"].tolist() == [1, 1]
    compiled("tiny").reset()
    check("tiny", [(np.array([[1, 1]]), [0, 24])])


def test_arguments_are_refused():
    with pytest.raises(ValueError, match="degree is 7; allowed: 2, 3, 4, 5, 6"):
        ScoreStatistics(DESIGNS["tiny"], 7)
    with pytest.raises(ValueError, match="degree is 1; allowed: 2, 3, 4, 5, 6"):
        golden.ScoreStatistics(1)
