"""Cycles of TopK: formula, constants and bounds against the compiled RTL, up to 64 Ki scores."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import Fragment

from nearkv_hdl.attention.topk import TopK
from nearkv_hdl.spec.topk_config import TOPK_DESIGNS
from nearkv_sim.golden.topk_timing import TopKTiming

LARGE = "smartssd_ku15p"
N = 65_536
# The bounds of the specification: 3N/w + k + WORST, 2N/w + k + REAL_LIKE.
WORST_EXTRA_CYCLES = 8192
REAL_LIKE_EXTRA_CYCLES = 4096
SMALL_NAMES = ("four_lanes", "runs_of_8", "one_lane", "eight_lanes")


@pytest.mark.parametrize("name", SMALL_NAMES)
def test_formula_on_random_jobs(bench, make_job, name):
    """Every job takes exactly what the golden timing says, whatever the scores, the window and k."""
    unit = bench(name)
    config = unit.config
    timing = TopKTiming(config)
    rng = np.random.default_rng(21)
    passes = set()
    for trial in range(150):
        n = int(rng.integers(0, config.capacity + 1))
        spread = int(rng.integers(0, config.score_bits))
        scores = rng.integers(config.score.min, config.score.max + 1, n) >> spread
        window = int(rng.integers(config.score.min, config.score.max)) >> spread
        job = make_job(scores, int(rng.integers(0, n + 2)), window_base=window, window_shift=trial % 3)
        result, cycles = unit.cycles_after_last_beat(job)
        assert cycles == timing.cycles(result)
        assert cycles <= timing.worst_case_cycles(n, job.k)
        passes.add((len(result.pass_rows), result.memory_passes))
    assert passes >= {(0, 0), (1, 1), (2, 1), (2, 2)} or config.residual_bits <= config.digit_bits


@pytest.mark.parametrize("name", [*SMALL_NAMES, *TOPK_DESIGNS])
def test_constants_of_rtl_and_golden_agree(bench, name):
    config = TOPK_DESIGNS[name] if name in TOPK_DESIGNS else bench(name).config
    unit, timing = TopK(config), TopKTiming(config)
    Fragment.get(unit, None)  # elaborates, without the cost of a build
    assert (unit.latency, unit.empty_latency, unit.pass_overhead, unit.interval) == (
        timing.latency,
        timing.empty_latency,
        timing.pass_overhead,
        1,
    )
    assert unit.worst_case_cycles(700, 30) == timing.worst_case_cycles(700, 30)


def test_first_item_and_interval(bench, make_job):
    """The constants one by one: k = N needs no pass, so items follow each other without a gap."""
    unit = bench("four_lanes")
    n = unit.config.capacity
    _, outcome = unit.run([make_job(np.arange(n) - 32, k=n)])
    beats, items = outcome.ports["i"], outcome.ports["o"]
    assert beats.last_cycle - beats.first_cycle == (n - 1) * unit.component.interval
    assert items.first_cycle - beats.last_cycle == unit.component.latency
    assert items.last_cycle - items.first_cycle == n - 1
    for job in (make_job(np.arange(9), k=0), make_job(np.zeros(0), k=4)):
        assert unit.cycles_after_last_beat(job)[1] == unit.component.empty_latency


def test_first_job_after_reset(bench, make_job):
    unit = bench("four_lanes")
    unit.compiled.reset()
    _, outcome = unit.run([make_job(np.arange(4), k=1)])
    assert outcome.ports["i_job"].first_cycle == unit.component.clear_latency


def test_reset_forgets_a_job_half_done(bench, make_job):
    """Counts of an interrupted job stay in the histograms' memory; the scan after reset removes them."""
    unit = bench("four_lanes")
    for _ in range(3):
        unit.run([make_job(np.full(7, 5), k=3)])
        unit.compiled.reset()
        unit.run([make_job(np.array([5, 1, 5]), k=1)])


ADVERSARIAL = {
    "all equal": (lambda _rng: np.full(N, 7), (1 << 30, 3)),
    "all below the window": (lambda rng: rng.integers(0, 1 << 20, N), (1 << 30, 3)),
    "all above the window": (lambda rng: rng.integers(0, 1 << 20, N), (-(1 << 30), 3)),
    "inside one window bucket": (lambda rng: rng.integers(0, 1 << 20, N), (-(1 << 25), 21)),
    "both ends of the range": (lambda rng: rng.choice([-(1 << 31), (1 << 31) - 1], N), (0, 9)),
    "all at the lower end": (lambda _rng: np.full(N, -(1 << 31)), (-(1 << 31), 21)),
    "all at the upper end": (lambda _rng: np.full(N, (1 << 31) - 1), ((1 << 31) - 1, 0)),
    "one lane holds the interval": (
        lambda rng: np.where(np.arange(N) % 4 == 2, rng.integers(0, 1 << 20, N), -(1 << 30)),
        (1 << 30, 0),
    ),
    "ascending": (lambda _rng: np.arange(N) - N // 2, (0, 0)),
    "uniform": (lambda rng: rng.integers(-(1 << 31), 1 << 31, N), (-(1 << 31), 21)),
}


@pytest.mark.parametrize("case", ADVERSARIAL)
def test_worst_case_bound_at_64_ki(bench, make_job, case):
    """No scores, window or k exceed 3N/w + k + 8192; the golden timing is exact for all of them."""
    unit = bench(LARGE)
    assert unit.config.capacity >= N
    timing = TopKTiming(unit.config)
    make_scores, (base, shift) = ADVERSARIAL[case]
    scores = make_scores(np.random.default_rng(31))
    for k in (1, N // 10, N // 2, N - 1, N):
        job = make_job(scores, k, window_base=base, window_shift=shift)
        result, cycles = unit.cycles_after_last_beat(job)
        assert cycles == timing.cycles(result)
        assert cycles <= timing.worst_case_cycles(N, k)
        assert cycles <= 3 * N // unit.config.lanes + k + WORST_EXTRA_CYCLES


def test_the_worst_case_is_reached(bench, make_job):
    """The bound is tight: two passes over the memory, then all items in the last row."""
    unit = bench(LARGE)
    # All but the last digit are equal for far more scores than can be kept.
    job = make_job(np.arange(N), k=unit.config.lanes, window_base=0, window_shift=0)
    result, cycles = unit.cycles_after_last_beat(job)
    assert result.memory_passes == 2
    assert cycles == TopKTiming(unit.config).worst_case_cycles(N, job.k) - 2


LOGIT_BITS = 19  # fraction bits of a score; 17 to 20 on the trace in data/
WIDE_LOGITS = 64  # half width of the window, in base-2 logits


def attention_like(rng, mean, spread):
    """Scores of base-2 logits: a Gaussian bulk, sinks, a recent peak, single strong keys."""
    logits = rng.normal(mean, spread, N)
    logits[:4] += 4 * spread
    logits[-64:] += np.linspace(0, 2 * spread, 64)
    logits[rng.integers(0, N, 200)] += rng.exponential(spread, 200)
    return np.rint(logits * (1 << LOGIT_BITS)).astype(np.int64)


@pytest.mark.parametrize("spread", [1.0, 2.0, 4.0, 8.0, 16.0])
def test_real_like_bound_at_64_ki(bench, make_job, spread):
    """2N/w + k + 4096 with a window that needs no history."""
    unit = bench(LARGE)
    config = unit.config
    timing = TopKTiming(config)
    rng = np.random.default_rng(41)
    base, shift = config.window(-WIDE_LOGITS << LOGIT_BITS, WIDE_LOGITS << LOGIT_BITS)
    for k in (1, N // 20, N // 10, N // 4):
        scores = attention_like(rng, rng.normal(0, 4), spread)
        result, cycles = unit.cycles_after_last_beat(
            make_job(scores, k, window_base=base, window_shift=shift)
        )
        assert cycles == timing.cycles(result)
        assert cycles <= 2 * N // config.lanes + k + REAL_LIKE_EXTRA_CYCLES
        assert result.memory_passes <= 1
