"""The scheduler over steps: intervals, rules, grace of new tokens, reaction to load."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.pam.placement import DDR, HBM, SSD, ImportanceRatio
from nearkv.pam.scheduler import GRACE_TOKENS, PamScheduler, Rule, Scheduling

ROOM = (100, 200, 1000)


def run(scheduler: PamScheduler, steps: int, first: int = 400, hot=range(40), seed: int = 1):
    """Steps that select the hot tokens and a few others; one new token each."""
    rng = np.random.default_rng(seed)
    moves = []
    for step in range(steps):
        tokens = first + step
        others = rng.choice(np.arange(40, tokens), 8, replace=False)
        selected = np.unique(np.concatenate((np.array(hot), others)))
        weight = np.where(np.isin(selected, np.array(hot)), 0.02, 0.001)
        moves.append(scheduler.step(tokens, selected, weight))
    return moves


def counts(scheduler: PamScheduler) -> list[int]:
    return np.bincount(scheduler.tier, minlength=3).tolist()


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("interval", [1, 50])
def test_important_tokens_end_in_hbm_and_room_is_kept(rule, interval):
    scheduler = PamScheduler(1000, ROOM, Scheduling(migration_interval=interval), rule)
    moves = run(scheduler, 120)
    assert [move.evaluated for move in moves] == [(s + 1) % interval == 0 for s in range(120)]
    assert all(held <= room for held, room in zip(counts(scheduler), ROOM, strict=True))
    assert sum(counts(scheduler)) == 519
    # With counts of a single step nothing ever reaches the threshold of 5.0: all but the newest are cold.
    reachable = not (rule is Rule.COUNTS and interval == 1)
    assert (scheduler.tier[:40] == HBM).all() == reachable
    if not reachable:
        assert (scheduler.tier[: 519 - GRACE_TOKENS] == SSD).all()
    assert (scheduler.tier[-GRACE_TOKENS:] == HBM).all()


def test_moves_are_the_difference_of_placements():
    scheduler = PamScheduler(1000, ROOM, Scheduling(migration_interval=10))
    tier = np.zeros(0, np.int8)
    for tokens in range(400, 460):
        move = scheduler.step(
            tokens, np.arange(tokens % 7, tokens, 9), np.full(len(range(tokens % 7, tokens, 9)), 0.01)
        )
        tier = np.concatenate((tier, np.full(tokens - len(tier), HBM, np.int8)))
        for (source, target), moved in move.tokens.items():
            assert source != target
            assert (tier[moved] == source).all()
            tier[moved] = target
        np.testing.assert_array_equal(tier, scheduler.tier)


def test_the_papers_migration_volume_is_small_at_every_step():
    """PAM reports 0.7 % of tokens per step; a steady access pattern needs no more here."""
    moves = run(PamScheduler(1000, ROOM, Scheduling(migration_interval=1)), 100)
    settled = moves[20:]
    assert sum(move.count for move in settled) / len(settled) < 0.07 * 480


@pytest.mark.parametrize("slow", [HBM, DDR, SSD])
def test_the_slowest_tier_hands_tokens_over_and_gets_them_back(slow):
    scheduler = PamScheduler(1000, ROOM, Scheduling(migration_interval=1))
    run(scheduler, 30)
    before = counts(scheduler)
    times = [100, 100, 100]
    times[slow] = 200
    for _ in range(5):
        scheduler.react(times)
        scheduler.step(430, np.arange(40), np.full(40, 0.02))
    after = counts(scheduler)
    if slow == SSD:
        # HBM and DDR are full: what the SSD hands up has no room and stays.
        assert after == [*before[:2], before[2] + 1]
    else:
        assert after[slow] < before[slow]
        assert after[slow + 1] > before[slow + 1] or slow == HBM
    assert sum(after) == 430
    for _ in range(60):
        scheduler.react([100, 100, 100])
        scheduler.step(430, np.arange(40), np.full(40, 0.02))
    assert scheduler.room_tokens == list(ROOM)
    assert counts(scheduler)[HBM] == before[HBM]


def test_an_ssd_hands_up_what_the_others_have_room_for():
    scheduler = PamScheduler(1000, (300, 400, 1000), Scheduling(migration_interval=100))
    scheduler.step(600, np.arange(600), np.linspace(1, 0, 600))
    scheduler.tier[:] = SSD
    scheduler.react([1, 1, 100])
    scheduler.step(600, np.arange(10), np.full(10, 0.1))
    assert counts(scheduler)[SSD] == int(600 * 0.95)
    assert (scheduler.tier[:10] != SSD).all()


def test_a_small_difference_of_load_moves_nothing():
    scheduler = PamScheduler(1000, ROOM, Scheduling())
    run(scheduler, 3)
    scheduler.react([105, 100, 100])
    assert scheduler.room_tokens == list(ROOM)


def test_a_tier_without_room_never_gets_any():
    scheduler = PamScheduler(20, (0, 16, 4), Scheduling(migration_interval=1))
    for tokens in range(1, 21):
        scheduler.step(tokens, np.array([0]), np.ones(1))
        scheduler.react([10**18, 1, tokens])  # not to be had from an empty tier, but a caller may say so
        assert scheduler.room_tokens[HBM] == 0
        assert all(held <= room for held, room in zip(counts(scheduler), (0, 16, 4), strict=True))


@pytest.mark.parametrize(
    ("selected", "weight", "message"),
    [
        ([0, 1], [1, np.nan], "weight is .*nan.*; allowed: a finite number from 0 for each"),
        ([0, 1], [1, np.inf], "weight is .*inf"),
        ([0, 1], [1, -0.1], "weight is .*-0.1"),
        ([0, 1], [1], "weight is .*; allowed: a finite number from 0 for each selected token"),
        ([-1, 1], [1, 1], "selected is .*; allowed: distinct tokens 0 to 29, ascending"),
        ([1, 30], [1, 1], "selected is .*30"),
        ([1, 1], [1, 1], "selected is .*1 1"),
        ([2, 1], [1, 1], "selected is .*2 1"),
    ],
)
@pytest.mark.parametrize("rule", Rule)
def test_a_refused_step_changes_nothing(rule, selected, weight, message):
    scheduler, other = (PamScheduler(40, (16, 8, 16), Scheduling(migration_interval=2), rule) for _ in "ab")
    for each in (scheduler, other):
        each.step(30, np.array([3]), np.ones(1))
    with pytest.raises(ValueError, match=message):
        scheduler.step(30, np.array(selected), np.array(weight))
    for each in (scheduler, other):
        each.step(31, np.array([4]), np.ones(1))
    np.testing.assert_array_equal(scheduler.tier, other.tier)
    np.testing.assert_array_equal(scheduler.importance, other.importance)


def test_the_batch_admits_up_to_its_size():
    assert Scheduling(batch_size=16).admitted(10, 20) == 6
    assert Scheduling(batch_size=16).admitted(16, 20) == 0
    assert Scheduling(batch_size=16).admitted(20, 1) == 0
    assert Scheduling(batch_size=16).admitted(0, 3) == 3


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Scheduling(migration_interval=0), "migration_interval is 0; allowed: from 1"),
        (lambda: Scheduling(batch_size=0), "batch_size is 0"),
        (lambda: Scheduling(hot_threshold=0.5), "hot_threshold is 0.5; allowed: from 1"),
        (lambda: Scheduling().admitted(-1, 0), "running is -1"),
        (
            lambda: PamScheduler(1000, (1, 1, 1), Scheduling()),
            "room_tokens is .1, 1, 1.; allowed: three from 0, 1000",
        ),
        (
            lambda: PamScheduler(10, ROOM, Scheduling(), Rule.COUNTS, ImportanceRatio(2, 1)),
            "allowed with rule counts: none",
        ),
        (
            lambda: PamScheduler(10, ROOM, Scheduling(hot_threshold=7.0), Rule.SCORES),
            "hot_threshold is 7.0; allowed with rule scores",
        ),
        (lambda: PamScheduler(10, ROOM, Scheduling()).step(11, np.arange(1), np.ones(1)), "tokens is 11"),
        (lambda: PamScheduler(10, ROOM, Scheduling()).react([1, 2]), "tier_ps is .1, 2.; allowed: three"),
    ],
)
def test_bad_arguments_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
