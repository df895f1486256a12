"""TopK against sorting: by hand, exhaustively, and at random with pauses on every port."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nearkv_hdl.attention.topk_load import item_layout, job_layout
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.cosim import Stalls, pack_words, unpack_words
from nearkv_sim.golden.topk import TopKModel, k_highest

SMALL_NAMES = ("four_lanes", "runs_of_8", "one_lane", "eight_lanes")


def sorted_positions(scores, k):
    """The oracle: a full sort by (score descending, position ascending), then back into order."""
    scores = np.asarray(scores)
    order = np.lexsort((np.arange(len(scores)), -scores))
    return np.sort(order[:k])


def test_by_hand(bench, make_job):
    unit = bench("four_lanes")
    #        token 3  5  6 10 11
    job = make_job(np.array([7, -2, 7, 9, 7]), k=3, tokens=np.array([3, 5, 6, 10, 11]))
    (result,), outcome = unit.run([job])
    items = unpack_words(item_layout(unit.config), outcome.outputs["o"])
    # 9, and of the three sevens the two with the lower tokens.
    assert items["token"].tolist() == [3, 6, 10]
    assert items["score"].tolist() == [7, 7, 9]
    assert items["last"].tolist() == [0, 0, 1]
    assert result.threshold == 7


def all_frames(n, levels):
    """Every frame of n scores with that many levels, [levels^n, n], around 0."""
    return np.indices((levels,) * n).reshape(n, levels**n).T - levels // 2


def run_all(unit, scores, k, base, shift):
    """Jobs [J] over frames [J, n] in one run; compares items with a stable sort, without the golden model."""
    config = unit.config
    jobs, n = scores.shape
    length = max(1, n)
    last = np.tile(np.arange(length) == length - 1, jobs)
    items = pack_words(
        item_layout(config),
        token=np.tile(np.arange(length), jobs),
        score=scores.ravel() if n else np.zeros(jobs, np.int64),
        keep=np.full(jobs * length, int(n > 0)),
        last=last.astype(np.int64),
    )
    commands = pack_words(job_layout(config), k=k, window_base=base, window_shift=shift)
    ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
    wanted = np.zeros((jobs, length), bool)
    wanted[:, :n] = ranks < k[:, None]
    empty = ~wanted.any(axis=1)
    wanted[empty, 0] = True  # the null beat
    outcome = unit.compiled.run({"i_job": commands, "i": items}, {"o": int(wanted.sum()), "o_status": jobs})
    got = unpack_words(item_layout(config), outcome.outputs["o"])
    frame, position = np.nonzero(wanted)
    keep = ~empty[frame]
    np.testing.assert_array_equal(got["keep"], keep)
    np.testing.assert_array_equal(got["token"][keep], position[keep])
    if n:
        np.testing.assert_array_equal(got["score"][keep], scores[frame, position][keep])
    np.testing.assert_array_equal(got["last"], np.append(np.diff(frame) > 0, True))


@pytest.fixture(scope="module")
def tiny_unit(make_bench):
    """Three-bit scores in digits of two bits and one, two lanes, room for six."""
    config = TopKConfig(
        capacity=6, lanes=2, score_bits=3, digit_bits=2, scan_columns=2, candidate_rows=2, token_bits=3
    )
    return make_bench(config, "exhaustive")


@pytest.mark.parametrize("n", range(7))
def test_exhaustive_3_bit_scores(tiny_unit, n):
    """Every frame of up to 6 scores, every k from 0 to N + 1; windows run through all values beside them."""
    frames = all_frames(n, 8)
    jobs = np.repeat(frames, n + 2, axis=0)
    k = np.tile(np.arange(n + 2), len(frames))
    window = np.arange(len(jobs)) // (n + 2)
    run_all(tiny_unit, jobs, k, window * 5 % 8 - 4, window // 8 % 2)


def test_exhaustive_windows_and_three_digits(make_bench):
    """Digits of one bit: every frame of up to 3 scores, every k, window_base and window_shift."""
    config = TopKConfig(
        capacity=4, lanes=1, score_bits=3, digit_bits=1, scan_columns=1, candidate_rows=2, token_bits=2
    )
    unit = make_bench(config, "exhaustive-digits")
    for n in range(4):
        frames = all_frames(n, 8)
        count = np.arange(len(frames) * (n + 2) * 8 * 4)
        frame, k, base, shift = np.unravel_index(count, (len(frames), n + 2, 8, 4))
        run_all(unit, frames[frame], k, base - 4, shift)


@st.composite
def jobs_of(draw, config, make_job):
    n = draw(st.integers(0, config.capacity + 2))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    low, high = config.score.min, config.score.max
    kind = draw(st.sampled_from(["uniform", "few levels", "equal", "extremes", "narrow"]))
    centre = draw(st.integers(low, high))
    scores = {
        "uniform": lambda: rng.integers(low, high + 1, n),
        "few levels": lambda: np.clip(centre + rng.integers(-1, 2, n), low, high),
        "equal": lambda: np.full(n, centre),
        "extremes": lambda: rng.choice([low, high], n),
        "narrow": lambda: np.clip(centre + rng.integers(0, 1 << (config.digit_bits + 1), n), low, high),
    }[kind]()
    runs = -(-n // config.token_run)
    firsts = np.cumsum(rng.integers(0, 3, runs)) + np.arange(runs)
    tokens = (firsts[:, None] * config.token_run + np.arange(config.token_run)).ravel()[:n]
    if n > 1 and draw(st.integers(0, 9)) == 0:
        tokens = tokens.copy()
        tokens[rng.integers(1, n)] = tokens[0]
    return make_job(
        scores,
        k=draw(st.one_of(st.integers(0, n + 1), st.just(2**32 - 1))),
        tokens=tokens,
        window_base=draw(st.integers(low, high)),
        window_shift=draw(st.integers(0, (1 << config.shift_bits) - 1)),
        holes=tuple(draw(st.lists(st.integers(0, n), max_size=2))),
    )


@pytest.mark.parametrize("name", SMALL_NAMES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_jobs_with_pauses(bench, make_job, name, data):
    """Back-to-back jobs of every kind, refused ones among them, with pauses on all four streams."""
    unit = bench(name)
    jobs = data.draw(st.lists(jobs_of(unit.config, make_job), min_size=1, max_size=4))
    share = st.sampled_from([0.0, 0.1, 0.5, 0.9])
    stalls = Stalls(
        seed=data.draw(st.integers(0, 2**32 - 1)),
        per_port={port: data.draw(share) for port in ("i_job", "i", "o", "o_status")},
        mean_burst_cycles=data.draw(st.sampled_from([None, 20.0])),
    )
    unit.run(jobs, stalls=stalls)


@pytest.mark.parametrize("name", SMALL_NAMES)
def test_pauses_do_not_change_the_result(bench, make_job, name):
    unit = bench(name)
    rng = np.random.default_rng(11)
    jobs = [make_job(rng.integers(-8, 8, n), k=n // 3) for n in (unit.config.capacity, 5, 0, 17)]
    _, free = unit.run(jobs)
    for seed in range(5):
        _, paused = unit.run(jobs, stalls=Stalls(seed=seed, input_probability=0.5, output_probability=0.7))
        for port, words in free.outputs.items():
            np.testing.assert_array_equal(paused.outputs[port], words)
        assert paused.cycles > free.cycles


@pytest.mark.parametrize("name", SMALL_NAMES)
def test_golden_against_the_sort(bench, name):
    model: TopKModel = bench(name).model
    config = model.config
    rng = np.random.default_rng(5)
    for _ in range(300):
        n = int(rng.integers(0, config.capacity + 1))
        scores = rng.integers(config.score.min, config.score.max + 1, n) >> int(rng.integers(0, 4))
        k = int(rng.integers(0, n + 2))
        result = model.select(np.arange(n), scores, k, window_base=int(rng.integers(-9, 9)), window_shift=1)
        expected = sorted_positions(scores, k)
        np.testing.assert_array_equal(result.positions, expected)
        np.testing.assert_array_equal(result.scores, scores[expected])
        if len(expected):
            unselected = np.delete(scores, expected)
            assert result.scores.min() >= result.threshold
            assert unselected.max(initial=config.score.min) <= result.threshold


def test_k_highest_against_the_sort():
    rng = np.random.default_rng(6)
    for n in (0, 1, 2, 50, 1000):
        for k in (0, 1, n // 2, n, n + 1):
            scores = rng.integers(-20, 20, n)
            np.testing.assert_array_equal(k_highest(scores, k), sorted_positions(scores, k))
