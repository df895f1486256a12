"""Algorithm 2: against the printed loops, its end, and room per tier."""

from __future__ import annotations

import numpy as np
import pytest

from nearkv.pam.placement import DDR, HBM, SSD, ImportanceRatio, fill_up, fit, place_by_heat, rebalance
from nearkv.policy.importance import Heat


def printed(importance, tier, ratio: ImportanceRatio, *, guard: bool, most_swaps: int = 10_000):
    """Algorithm 2 swap by swap; returns the tiers and the number of swaps, None where it did not end."""
    tier = tier.copy()
    swaps = 0

    def mean(which: int) -> float:
        return float(importance[tier == which].mean())

    def swap(upper: int, lower: int) -> bool:
        ups, downs = np.flatnonzero(tier == upper), np.flatnonzero(tier == lower)
        least, most = ups[importance[ups].argmin()], downs[importance[downs].argmax()]
        if guard and importance[most] <= importance[least]:
            return False
        tier[least], tier[most] = lower, upper
        return True

    for upper, lower, below in (
        (DDR, SSD, lambda: mean(HBM) + mean(DDR) < (ratio.hbm + ratio.ddr) * mean(SSD)),
        (HBM, DDR, lambda: mean(HBM) * ratio.ddr < ratio.hbm * mean(DDR)),
    ):
        while below():
            if not swap(upper, lower):
                break
            swaps += 1
            if swaps > most_swaps:
                return tier, None
    return tier, swaps


def distinct(rng, tokens: int):
    """Whole numbers, so that sums are exact in any order."""
    return rng.permutation(tokens).astype(np.float64)


@pytest.mark.parametrize("seed", range(40))
def test_all_swaps_at_once_are_the_printed_loops_with_a_guard(seed):
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(12, 200))
    importance, tier = distinct(rng, tokens), rng.integers(0, 3, tokens).astype(np.int8)
    tier[:3] = [HBM, DDR, SSD]
    # Ratios that sums of whole numbers meet exactly only by chance.
    ratio = ImportanceRatio(*rng.uniform(0.3, 9, 2))
    expected, swaps = printed(importance, tier, ratio, guard=True)
    assert swaps is not None
    found = rebalance(importance, tier, ratio)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.bincount(found, minlength=3), np.bincount(tier, minlength=3))


def test_the_printed_loop_does_not_end_where_ours_does():
    """No placement reaches 100 : 100 : 1 with these: swaps undo each other for ever."""
    importance = np.array([3.0, 3.0, 2.0, 2.0, 1.0, 1.0])
    tier = np.array([HBM, HBM, DDR, DDR, SSD, SSD], np.int8)
    ratio = ImportanceRatio(100, 100)
    _, swaps = printed(importance, tier, ratio, guard=False)
    assert swaps is None
    np.testing.assert_array_equal(rebalance(importance, tier, ratio), tier)


@pytest.mark.parametrize(
    "importance",
    [
        np.zeros(60),
        np.full(60, 7.0),
        np.r_[np.zeros(59), 1e250],
        np.arange(60.0),
        np.arange(60.0)[::-1].copy(),
    ],
    ids=["zeros", "equal", "one huge", "rising", "falling"],
)
@pytest.mark.parametrize("ratio", [(1e-9, 1e-9), (1, 1), (1e9, 1), (1, 1e9), (1e9, 1e9)])
def test_adversarial_inputs_end_and_never_lower_an_upper_tier(importance, ratio):
    tier = np.arange(60, dtype=np.int8) % 3
    found = rebalance(importance, tier, ImportanceRatio(*ratio))
    np.testing.assert_array_equal(np.bincount(found), [20, 20, 20])
    for which in (HBM, SSD):
        before, after = importance[tier == which].mean(), importance[found == which].mean()
        assert after >= before if which == HBM else after <= before
    again = rebalance(importance, found, ImportanceRatio(*ratio))
    # Another round finds what the loops, which never look back, have left: it ends as well, sorted at last.
    for _ in range(3):
        again = rebalance(importance, again, ImportanceRatio(*ratio))
    np.testing.assert_array_equal(rebalance(importance, again, ImportanceRatio(*ratio)), again)


def test_an_empty_tier_is_left_alone():
    tier = np.array([HBM, SSD, SSD], np.int8)
    np.testing.assert_array_equal(rebalance(np.array([0.0, 1, 2]), tier, ImportanceRatio(4, 2)), tier)


def test_fit_by_hand():
    importance = np.array([5.0, 1, 4, 2, 3, 0])
    tier = np.zeros(6, np.int8)
    np.testing.assert_array_equal(fit(importance, tier, (2, 2, 2)), [HBM, SSD, HBM, DDR, DDR, SSD])
    # Among equals the older goes down.
    np.testing.assert_array_equal(fit(np.zeros(3), np.zeros(3, np.int8), (1, 1, 1)), [SSD, DDR, HBM])
    # An SSD without room hands its most important up.
    low = np.full(6, SSD, np.int8)
    np.testing.assert_array_equal(fit(importance, low, (2, 2, 2)), [HBM, SSD, HBM, DDR, DDR, SSD])
    np.testing.assert_array_equal(fit(importance, low, (6, 6, 6)), low)
    np.testing.assert_array_equal(fill_up(importance, low, (1, 2, 6)), [HBM, SSD, DDR, SSD, DDR, SSD])


@pytest.mark.parametrize("seed", range(20))
def test_room_is_kept_and_no_token_lost(seed):
    rng = np.random.default_rng(seed)
    tokens = int(rng.integers(1, 300))
    tier = rng.integers(0, 3, tokens).astype(np.int8)
    cuts = np.sort(rng.integers(0, tokens + 1, 2))
    room = (int(cuts[0]), int(cuts[1] - cuts[0]), int(tokens - cuts[1]))
    for place in (fit, fill_up):
        counts = np.bincount(place(rng.random(tokens), tier, room), minlength=3)
        assert counts.tolist() == list(room)


def test_classes_of_heat_as_far_as_there_is_room():
    heat = np.array([Heat.HOT, Heat.HOT, Heat.WARM, Heat.COLD], np.int8)
    importance = np.array([9.0, 8, 3, 0])
    tier = np.full(4, SSD, np.int8)
    np.testing.assert_array_equal(place_by_heat(importance, heat, tier, (4, 4, 4)), [HBM, HBM, DDR, SSD])
    np.testing.assert_array_equal(place_by_heat(importance, heat, tier, (1, 1, 4)), [HBM, DDR, SSD, SSD])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: ImportanceRatio(0, 1), "hbm is 0; allowed: a finite number above 0"),
        (lambda: rebalance(np.zeros(2), np.zeros(3, np.int8), ImportanceRatio(1, 1)), "tier has shape"),
        (lambda: fit(np.array([-1.0]), np.zeros(1, np.int8), (1, 1, 1)), "importance holds a negative"),
        (lambda: fit(np.array([np.nan]), np.zeros(1, np.int8), (1, 1, 1)), "non-finite"),
        (lambda: fit(np.zeros(1), np.full(1, 3, np.int8), (1, 1, 1)), "tier holds 3 to 3; allowed: 0 to 2"),
        (lambda: fit(np.zeros(4), np.zeros(4, np.int8), (1, 1, 1)), "room_tokens is .1, 1, 1.; allowed"),
        (
            lambda: place_by_heat(np.zeros(2), np.zeros(3, np.int8), np.zeros(2, np.int8), (2, 0, 0)),
            "heat has shape",
        ),
    ],
)
def test_bad_arguments_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
