from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from nearkv_hdl.spec.formats import CODE, SCORE, Format, folded_query, is_power_of_two, rhu


def test_a_code_is_a_signed_byte():
    assert (CODE.min, CODE.max, CODE.lsb, CODE.name) == (-128, 127, 1.0, "SQ7.0")
    assert Format(16, signed=False, fraction_bits=15).name == "UQ1.15"
    assert Format(16, signed=False, fraction_bits=15).lsb == 2.0**-15


@pytest.mark.parametrize("signs", list(product([False, True], repeat=2)))
@pytest.mark.parametrize("widths", [(2, 2), (3, 5), (4, 4)])
def test_products_and_sums_hold_every_value(signs, widths):
    """Exhaustive at small widths: the derived format contains every result."""
    a, b = (Format(width, signed=sign) for width, sign in zip(widths, signs, strict=True))
    values = [x * y for x in range(a.min, a.max + 1) for y in range(b.min, b.max + 1)]
    derived = a.product(b)
    assert all(derived.contains(v) for v in values)
    for terms in (1, 2, 3, 8, 9):
        total = derived.sum_of(terms)
        assert total.contains(terms * max(values))
        assert total.contains(terms * min(values))


def test_powers_of_two():
    assert [value for value in range(-4, 20) if is_power_of_two(value)] == [1, 2, 4, 8, 16]


def test_growth_is_not_wasteful():
    assert CODE.product(folded_query(8)).sum_of(64).width == 22
    assert CODE.sum_of(1) == CODE
    assert SCORE.width == 32


def test_rhu_is_floor_of_x_plus_half():
    for x in range(-200, 201):
        for k in range(6):
            assert rhu(x, k) == (Fraction(x, 1 << k) + Fraction(1, 2)).__floor__() if k else rhu(x, k) == x
    assert rhu(3, -2) == 12


@pytest.mark.parametrize(("width", "signed"), [(0, False), (1, True), (65, True), (-3, False)])
def test_widths_outside_the_range_are_refused(width, signed):
    with pytest.raises(ValueError, match=f"width is {width}; allowed"):
        Format(width, signed=signed)


def test_other_arguments_are_refused():
    with pytest.raises(ValueError, match="query_bits is 9; allowed: 8, 10, 12"):
        folded_query(9)
    with pytest.raises(ValueError, match="terms is 0"):
        CODE.sum_of(0)
