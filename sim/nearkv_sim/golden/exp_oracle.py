"""Proves the error of a unit that computes 2^f, over every fraction, against arithmetic of 120 bits."""

from __future__ import annotations

from functools import cache

import mpmath
import numpy as np
import numpy.typing as npt

from nearkv_hdl.spec.exp_table import ERROR_FRACTION_BITS, EXP_FRACTION, EXP_MANTISSA, Accuracy

ORACLE_BITS = 120
FRACTIONS: npt.NDArray[np.int64] = np.arange(1 << EXP_FRACTION.width, dtype=np.int64)
ONE = 1 << EXP_MANTISSA.fraction_bits


@cache
def oracle() -> tuple[int, ...]:
    """floor-accurate 2^f · 2^120 for every fraction; each value within 4 of the exact one."""
    half = EXP_FRACTION.width // 2
    with mpmath.workprec(ORACLE_BITS + 40):
        coarse, fine = (
            [int(mpmath.floor(mpmath.ldexp(mpmath.mpf(2) ** (mpmath.mpf(i) / scale), ORACLE_BITS)))
             for i in range(1 << half)]
            for scale in (1 << half, len(FRACTIONS))
        )  # fmt: skip
    return tuple(high * low >> ORACLE_BITS for high in coarse for low in fine)


def certify(mantissas: npt.NDArray[np.int64]) -> Accuracy:
    """Proven bound on the relative error; ValueError unless monotonic, exact at 0 and in range."""
    if mantissas.shape != FRACTIONS.shape:
        raise ValueError(f"{mantissas.size} mantissas; allowed: {FRACTIONS.size}, one per fraction")
    if mantissas[0] != ONE:
        raise ValueError(f"2^0 is {mantissas[0]}; allowed: {ONE}")
    if (np.diff(mantissas) < 0).any():
        raise ValueError(f"falls after fraction {int(np.argmax(np.diff(mantissas) < 0))}")
    if mantissas[-1] > EXP_MANTISSA.max:
        raise ValueError(f"reaches {mantissas[-1]}; allowed: up to {EXP_MANTISSA.max}")
    unit = ORACLE_BITS - EXP_MANTISSA.fraction_bits
    slack = 4  # the oracle's own error
    worst, at = 0, 0
    for fraction, (mantissa, exact) in enumerate(zip(mantissas.tolist(), oracle(), strict=True)):
        difference = abs((mantissa << unit) - exact) + slack
        bound = -(-(difference << ERROR_FRACTION_BITS) // (exact - slack))
        if bound > worst:
            worst, at = bound, fraction
    return Accuracy(worst, at)
