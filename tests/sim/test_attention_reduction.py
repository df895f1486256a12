"""Reduction golden: both merges, the printed algorithm, the correctly rounded division."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from nearkv_hdl.spec.attention import Merge
from nearkv_sim.golden.attention import (
    Partial,
    attend_exact,
    logits,
    shard_maximum,
    weight_table,
    weighted_sums,
)
from nearkv_sim.golden.papers import hierarchical_attention, local_attention
from nearkv_sim.golden.reduction import divide, merge, reduce_tree, rescale_running
from nearkv_sim.golden.stored_rows import value_exponent


def partial_of(maximum: int, total: int, sums: list[int]) -> Partial:
    return Partial(np.array([maximum]), np.array([total]), np.array([sums]))


def test_exponential_merge_by_hand():
    """Maxima 2.5 apart: n = −3, f = ½, so x becomes rhu(x·m(½), 18)."""
    high, low = partial_of(5 << 15, 1 << 26, [100]), partial_of(0, 1 << 30, [-(1 << 40)])
    factor = int(weight_table()[1 << 15])
    result = merge([low, high], Merge.EXPONENTIAL)
    assert result.maximum.tolist() == [5 << 15]
    assert result.total.tolist() == [(1 << 26) + ((1 << 30) * factor + (1 << 17) >> 18)]
    assert result.sums.tolist() == [[100 + (-(1 << 40) * factor + (1 << 17) >> 18)]]


def test_equal_maxima_merge_exactly_either_way():
    a, b = partial_of(77, 123, [4, -5]), partial_of(77, 456, [-9, 5])
    for kind in Merge:
        assert merge([a, b], kind).total.tolist() == [579]
        assert merge([a, b], kind).sums.tolist() == [[-5, 0]]


def test_far_and_empty_partials_vanish():
    far = partial_of(-(1 << 31), (1 << 47) - 1, [-(1 << 46)])
    near = partial_of((1 << 31) - 1, 1 << 26, [3])
    result = merge([far, near], Merge.EXPONENTIAL)
    assert (result.total.tolist(), result.sums.tolist()) == ([1 << 26], [[3]])


def test_running_rescale_is_a_shift():
    moved = rescale_running(partial_of(3 << 16, 1000, [7, -7]), np.array([5]))
    assert (moved.maximum.tolist(), moved.total.tolist(), moved.sums.tolist()) == (
        [5 << 16],
        [250],
        [[2, -2]],
    )


@pytest.mark.parametrize("fan_ins", [(1,), (4,), (4, 4), (2, 2, 2, 2), (4, 16)])
def test_exponential_merge_stays_close_but_depends_on_the_split(fan_ins):
    """Within 1e-6 of the exact merge; not the same integers, which is why the exact merge exists."""
    rng = np.random.default_rng(5)
    query, keys, values = ((rng.standard_normal((n, 64)) * 1.5).astype(np.float16) for n in (2, 1024, 1024))
    exponent = value_exponent(values)
    partials = []
    for shard in np.array_split(np.arange(1024), np.prod(fan_ins)):
        scores, _ = logits(query, keys[shard])
        partials.append(weighted_sums(scores, values[shard], shard_maximum(scores), exponent))
    result = reduce_tree(partials, fan_ins, Merge.EXPONENTIAL)
    exact = attend_exact(query, keys, values, exponent)
    a, b = (p.sums / p.total[:, None] for p in (result, exact))
    assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)
    assert np.array_equal(result.sums, exact.sums) == (fan_ins == (1,))


def test_printed_algorithm_is_wrong_and_the_linear_sum_right():
    """Algorithm 1 as printed returns m + log Σ, which its next level reads as Σ: ten times off and more."""
    rng = np.random.default_rng(0)
    scores, values = rng.standard_normal(4096), rng.standard_normal((4096, 128))
    whole = local_attention(scores, values)
    reference = whole.output / whole.total

    def error(**kind):
        result = hierarchical_attention(scores, values, (4, 4, 4), **kind)
        return np.linalg.norm(result - reference) / np.linalg.norm(reference)

    assert error(printed=True) > 10
    assert error(printed=False) < 1e-14


# Every finite magnitude in the order of its bit pattern, and 2^16 in the place of Inf.
FP16_MAGNITUDES = [
    *(Fraction(float(x)) for x in np.arange(0x7C00, dtype=np.uint16).view(np.float16)),
    Fraction(1 << 16),
]


def nearest_fp16(value: Fraction) -> int:
    """Bit pattern nearest to a rational, ties to even, found among all there are."""
    magnitudes = FP16_MAGNITUDES
    low, high = 0, len(magnitudes) - 1
    wanted = min(abs(value), magnitudes[-1])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if magnitudes[middle] <= wanted else (low, middle - 1)
    above = min(low + 1, len(magnitudes) - 1)
    nearest = min((low, above), key=lambda bits: (abs(magnitudes[bits] - wanted), bits & 1))
    return nearest | (0x8000 if value < 0 else 0)


@pytest.fixture(scope="module")
def division_cases():
    """(o, l, E_V): random over all magnitudes, exact ties and their neighbours, subnormal results."""
    rng = np.random.default_rng(2)
    cases = []
    for _ in range(250):
        total = int(rng.integers(1, 1 << int(rng.integers(1, 47))))
        sums = (rng.uniform(-1, 1, 8) * total * 2.0 ** -rng.integers(0, 40, 8)).astype(np.int64)
        cases.append((sums.tolist(), total, int(rng.integers(-13, 17))))
    for exponent in range(-13, 17):
        half = int(rng.integers(1024, 2048)) * 2 + 1  # 12 bits: halfway between two results
        ties = [half << 20, (half << 20) + 1, (half << 20) - 1, -(half << 20), half, -half, 1, 3]
        cases.append((ties, 1 << 32, exponent))
    return cases


def test_division_is_correctly_rounded(division_cases):
    for sums, total, exponent in division_cases:
        bits = divide(partial_of(0, total, sums), exponent).view(np.uint16)[0].tolist()
        expected = [nearest_fp16(Fraction(o) * Fraction(2) ** exponent / total) for o in sums]
        assert bits == [0 if o == 0 else e for o, e in zip(sums, expected, strict=True)]


def test_division_overflows_to_infinity_and_zero_sums_give_zero():
    top = divide(partial_of(0, 1 << 26, [(1 << 26) - 1, -(1 << 26), 65519 << 10, 65520 << 10, 0]), 16)[0]
    assert top.tolist() == [np.inf, -np.inf, 65504.0, np.inf, 0.0]
    assert divide(partial_of(0, 0, [0, 0]), 3).tolist() == [[0.0, 0.0]]


def test_refusals_quote_the_value():
    one = partial_of(0, 1, [1])
    with pytest.raises(ValueError, match="0 partials"):
        merge([], Merge.EXACT)
    with pytest.raises(ValueError, match=r"\(3,\) for 4 partials"):
        reduce_tree([one] * 4, (3,), Merge.EXACT)
    with pytest.raises(ValueError, match=r"\(2,\) for 4 partials"):
        reduce_tree([one] * 4, (2,), Merge.EXACT)
    with pytest.raises(ValueError, match="value_exponent is 17"):
        divide(one, 17)
