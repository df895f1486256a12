"""The golden exp units against three oracles: 120-bit arithmetic, APyTypes fixed point and IEEE rounding."""

from itertools import pairwise

import apytypes
import mpmath
import numpy as np
import pytest

from nearkv_hdl.spec import exp_table
from nearkv_hdl.spec.exp_table import LOOKUPS, POLYNOMIALS, SEGMENTS, SHIFT_ADDS, exp2_rounded
from nearkv_sim.golden import exp, exp_fit
from nearkv_sim.golden.exp_oracle import FRACTIONS, ONE, ORACLE_BITS, certify, oracle

# Largest relative error of the mantissa, and of the FP16 number made of it, by degree.
MANTISSA_BOUNDS = {2: 0.0021, 3: 0.00011, 4: 0.00002, 5: 0.00002, 6: 0.00002}
FP16_BOUNDS = {2: 0.0025, 3: 0.00056, 4: 0.0005, 5: 0.0005, 6: 0.0005}

CORES = [
    *((exp.Exp2Polynomial, size) for size in POLYNOMIALS),
    *((exp.Exp2Lookup, size) for size in LOOKUPS),
    *((exp.Exp2Segments, size) for size in SEGMENTS),
    *((exp.Exp2ShiftAdd, size) for size in SHIFT_ADDS),
]


@pytest.fixture(params=CORES, ids=lambda core: f"{core[0].__name__}{core[1]}")
def core(request):
    kind, size = request.param
    return kind(size)


def real_powers():
    """2^f, correct to 2^-52."""
    return np.array([value / (1 << ORACLE_BITS) for value in oracle()])


def test_oracle_is_two_to_the_f():
    with mpmath.workprec(200):
        for f in (0, 1, 255, 256, 32768, 40503, 65535):
            exact = mpmath.mpf(2) ** (mpmath.mpf(f) / 65536) * mpmath.mpf(2) ** ORACLE_BITS
            assert 0 <= exact - oracle()[f] < 4


def test_table_holds_the_error_it_claims_over_every_fraction(core):
    # certify also refuses what falls, is not exact at 0 or leaves the range.
    assert certify(core.mantissa(FRACTIONS)) == core.constants.accuracy


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_published_bounds(degree):
    core = exp.Exp2Polynomial(degree)
    assert core.constants.accuracy.max_relative_error <= MANTISSA_BOUNDS[degree]
    for n in (-14, 0, 14):
        power = exp.ExpUnit(core).evaluate((n << 16) + FRACTIONS)
        numbers = exp.ExpToFp16().convert(*power).astype(np.uint16).view(np.float16).astype(np.float64)
        assert np.abs(numbers / (real_powers() * 2.0**n) - 1).max() <= FP16_BOUNDS[degree]


def test_monotonic_and_exact_over_integer_boundaries(core):
    x = np.arange(-3 << 16, 3 << 16)
    n, m, _ = exp.ExpUnit(core).evaluate(x)
    assert (np.diff(m * 2.0**n) >= 0).all()
    at_integers = x & 0xFFFF == 0
    np.testing.assert_array_equal((m * 2.0**n)[at_integers], ONE * 2.0 ** (x[at_integers] >> 16))


@pytest.mark.parametrize("degree", POLYNOMIALS)
def test_apytypes_computes_the_same_polynomial(degree):
    *lower, leading = POLYNOMIALS[degree].coefficients
    bits = exp_table.COEFFICIENT_FRACTION_BITS
    f = apytypes.APyFixedArray(FRACTIONS.tolist(), int_bits=1, frac_bits=16)
    half_up = apytypes.QuantizationMode.RND
    a = apytypes.APyFixed(leading, int_bits=1, frac_bits=bits)
    for c in reversed(lower):
        product = (f * a).cast(int_bits=2, frac_bits=bits, quantization=half_up)
        a = product + apytypes.APyFixed(c, int_bits=1, frac_bits=bits)
    product = f * a
    m = product.cast(int_bits=3, frac_bits=15, quantization=half_up) + apytypes.APyFixed(ONE, 3, 15)
    core = exp.Exp2Polynomial(degree)
    np.testing.assert_array_equal(m.to_numpy() * ONE, core.mantissa(FRACTIONS))
    np.testing.assert_array_equal(m.to_numpy() > 1 + product.to_numpy(), core.rounded_up(FRACTIONS))


def test_apytypes_rounds_to_the_same_fp16():
    # Without an earlier rounding, midway is a matter of the tie rule alone: compare everywhere else.
    n, m = (a.ravel() for a in np.meshgrid(np.arange(-30, 20), np.arange(ONE, 2 * ONE, 5)))
    mine = exp.ExpToFp16().convert(n, m, np.zeros_like(n))
    exact = m * 2.0 ** (n - 15)
    theirs = apytypes.APyFloatArray.from_float(exact.tolist(), exp_bits=5, man_bits=10).to_bits()
    drop = 5 + np.clip(-14 - n, 0, 20)
    midway = (m & ((1 << drop) - 1)) == 1 << (drop - 1)
    np.testing.assert_array_equal(mine[~midway], np.array(theirs)[~midway])
    with np.errstate(over="ignore"):
        ieee = exact.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(mine[~midway], ieee[~midway])
    assert (np.abs(mine[midway] - ieee[midway].astype(int)) <= 1).all()


def test_minimax_polynomial_alternates_and_bounds_ours_from_below():
    for degree in (2, 3, 4):
        coefficients, level = exp_fit.minimax(degree)
        x = np.linspace(0, 1, 20001)
        error = np.polyval([float(c) for c in reversed(coefficients)] + [1.0], x) / 2**x - 1
        assert np.abs(error).max() == pytest.approx(float(level), rel=1e-5)
        extremes = [
            error[i] for i in range(1, 20000) if (error[i] - error[i - 1]) * (error[i + 1] - error[i]) < 0
        ]
        extremes.append(error[-1])
        assert len(extremes) == degree + 1
        assert all(a * b < 0 for a, b in pairwise(extremes))
        ours = POLYNOMIALS[degree].accuracy.max_relative_error
        assert float(level) < ours < float(level) + 2.0**-16  # what rounding the mantissa may add


def test_small_lookup_by_hand():
    # 2^(1/2) = 1.41421…, 2^(1/4) = 1.18921…, 2^(3/4) = 1.68179…
    assert [exp2_rounded(i, 2, 5) for i in range(4)] == [32, 38, 45, 54]
    assert exp2_rounded(1, 1, 30) == 1518500250  # √2·2^30 = 1518500249.988…


def test_the_script_derives_the_table_that_is_checked_in(capsys):
    assert exp_fit.main(["--check"]) == 0
    assert capsys.readouterr().out == "unchanged\n"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda m: m[:-1], "65535 mantissas; allowed: 65536"),
        (lambda m: np.where(FRACTIONS == 0, ONE + 1, m), "2\\^0 is 32769; allowed: 32768"),
        (lambda m: np.where(FRACTIONS == 500, m - 3, m), "falls after fraction 499"),
        (lambda m: np.where(FRACTIONS == 65535, 65536, m), "reaches 65536; allowed: up to 65535"),
    ],
)
def test_certificate_is_refused(spoil, message):
    with pytest.raises(ValueError, match=message):
        certify(spoil(exp.Exp2Polynomial().mantissa(FRACTIONS)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exp.Exp2Polynomial(1), "degree is 1; allowed: 2, 3, 4, 5, 6"),
        (lambda: exp.Exp2Lookup(4), "index_bits is 4; allowed: 8, 9, 12"),
        (lambda: exp.Exp2Segments(4), "index_bits is 4; allowed: 3, 5, 7"),
        (lambda: exp.Exp2ShiftAdd(4), "digits is 4; allowed: 10, 12, 14, 18"),
        (lambda: exp.Exp2Polynomial().mantissa([5, 65536]), "f is 65536; allowed: 0 to 65535"),
        (lambda: exp.Exp2Polynomial().mantissa([0.5]), "f has dtype float64; allowed: integers"),
        (lambda: exp.ExpUnit().evaluate([1 << 31]), "x is 2147483648; allowed: -2147483648 to 2147483647"),
        (lambda: exp.ExpToFp16().convert(0, 5, 0), "mantissa is 5; allowed: from 32768"),
        (lambda: exp.ExpToFp16().convert(1 << 15, ONE, 0), "exponent is 32768; allowed: -32768 to 32767"),
    ],
)
def test_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
