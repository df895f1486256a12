"""Derives the constants in `nearkv_hdl.spec.exp_table` and proves their error bounds.

    python -m nearkv_sim.golden.exp_fit            rewrites the generated part of exp_table.py
    python -m nearkv_sim.golden.exp_fit --check    fails if that would change anything

A bound is proven by trying all 65,536 fractions, in integers, against 2^f with 120 fraction bits from mpmath.
The real-valued minimax polynomial (Remez exchange) shows how much of an error is the degree's and how much
the arithmetic's. Needs mpmath, which the extra `test` installs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from pprint import pformat
from textwrap import indent
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

from nearkv_hdl.spec import exp_table
from nearkv_hdl.spec.exp_table import (
    COEFFICIENT_FRACTION_BITS,
    EXP_FRACTION,
    EXP_MANTISSA,
    Accuracy,
    Lookup,
    Polynomial,
    Segments,
    ShiftAdd,
)
from nearkv_sim.golden import exp
from nearkv_sim.golden.exp_oracle import FRACTIONS, ONE, ORACLE_BITS, certify, oracle

Integers = npt.NDArray[np.int64]

# 2^f · 2^15 to search with, the same on every machine; bounds are proven in integers.
TARGET = np.array([value / (1 << ORACLE_BITS) for value in oracle()]) * ONE
MARKER = "# Written by exp_fit; do not edit below.\n"

DEGREES = (2, 3, 4, 5, 6)
LOOKUP_SIZES = ((8, 10), (9, 11), (12, 15))  # index bits, entry fraction bits
# index bits, slope bits, remainder bits, guard bits of a base
SEGMENT_SIZES = ((3, 8, 8, 0), (5, 9, 9, 1), (7, 11, 9, 2))
# factors, digits, residual guard, mantissa guard, bits of ln 2, start bias, end bias
SHIFT_ADD_SIZES = (
    (5, 10, 0, 0, 4, 0, 0),
    (5, 12, 0, 0, 4, 0, 0),
    (7, 14, 0, 2, 10, 2, 0),
    (9, 18, 3, 5, 10, 3, 16),
)


def search_error(mantissas: Integers) -> float:
    """Largest relative error in float64; infinite if a mantissa is out of range."""
    if mantissas[0] != ONE or mantissas.max() > EXP_MANTISSA.max:
        return float("inf")
    return float(np.abs(mantissas / TARGET - 1).max())


def minimax(degree: int) -> tuple[list[Any], Any]:
    """Coefficients c_1 … c_d of 1 + Σ c_k·f^k with least largest relative error on (0, 1], and that error.

    Remez exchange: solve for equal and alternating errors at degree + 1 points, move the points to the
    extremes of the error, repeat. p(0) = 1 is kept, so the first extreme lies inside.
    """
    count = degree + 1
    with mpmath.workprec(ORACLE_BITS):
        points = [mpmath.mpf(k + 1) / count for k in range(count)]
        while True:
            system = mpmath.matrix(count, count)
            right = mpmath.matrix(count, 1)
            for row, x in enumerate(points):
                weight = mpmath.mpf(2) ** -x
                for k in range(degree):
                    system[row, k] = x ** (k + 1) * weight
                system[row, degree] = (-1) ** row
                right[row] = 1 - weight
            solution = list(mpmath.lu_solve(system, right))
            coefficients, level = solution[:degree], abs(solution[degree])

            def error(x: Any, c: list[Any] = coefficients) -> Any:
                return mpmath.polyval([*reversed(c), 1], x) * mpmath.mpf(2) ** -x - 1

            extremes = _extremes(error, points)
            moved = max(abs(a - b) for a, b in zip(points, extremes, strict=True))
            points = extremes
            if moved < mpmath.mpf(10) ** -9:
                return coefficients, level


def _extremes(error: Callable[[Any], Any], points: list[Any]) -> list[Any]:
    """Extreme of the error around each inner point, by golden-section search; the last point stays 1."""
    bounds = [mpmath.mpf(0), *((a + b) / 2 for a, b in itertools.pairwise(points))]
    found = []
    ratio = (mpmath.sqrt(5) - 1) / 2
    for index, point in enumerate(points[:-1]):
        sign = mpmath.sign(error(point))
        low, high = bounds[index], bounds[index + 1]
        while high - low > mpmath.mpf(10) ** -12:
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            if sign * error(left) < sign * error(right):
                low = left
            else:
                high = right
        found.append((low + high) / 2)
    return [*found, mpmath.mpf(1)]


def polynomial_error(c: tuple[int, ...]) -> float:
    """Largest relative error; infinite if an accumulator outgrows its 17 fraction bits."""
    if min(c) <= 0 or exp.first_accumulator(c, FRACTIONS).max() >> COEFFICIENT_FRACTION_BITS:
        return float("inf")
    return search_error(exp.polynomial_mantissa(c, FRACTIONS))


def fit_polynomial(degree: int) -> Polynomial:
    """Round the minimax coefficients, then move up to three of them at a time while the error falls."""
    real, _ = minimax(degree)
    best = tuple(int(mpmath.nint(mpmath.ldexp(c, COEFFICIENT_FRACTION_BITS))) for c in real)
    while (least := polynomial_error(best)) == float("inf"):  # p(1) was rounded to 2 or above
        best = (best[0] - 1, *best[1:])
    for step in (3, 2, 1, 0):
        improved = True
        while improved:
            improved = False
            for moved in _neighbours(best, step):
                if (error := polynomial_error(moved)) < least:
                    best, least, improved = moved, error, True
    return Polynomial(best, certify(exp.polynomial_mantissa(best, FRACTIONS)))


def _neighbours(c: tuple[int, ...], step: int) -> Iterable[tuple[int, ...]]:
    """`c` with up to three entries moved by 2^step either way."""
    for count in (1, 2, 3):
        for places in itertools.combinations(range(len(c)), min(count, len(c))):
            for signs in itertools.product((1, -1), repeat=len(places)):
                moved = list(c)
                for place, sign in zip(places, signs, strict=True):
                    moved[place] += sign << step
                yield tuple(moved)


def fit_lookup(index_bits: int, entry_fraction_bits: int) -> Lookup:
    """Entries are rounded values of 2^f; only the bound is to be found."""
    table = Lookup(index_bits, entry_fraction_bits, Accuracy(0, 0))
    return Lookup(index_bits, entry_fraction_bits, certify(exp.lookup_mantissa(table, FRACTIONS)))


def fit_segments(index_bits: int, slope_bits: int, remainder_bits: int, guard_bits: int) -> Segments:
    """Best line per segment that does not fall below the end of the one before it."""
    length = len(FRACTIONS) >> index_bits
    below = EXP_FRACTION.width - index_bits
    r = (FRACTIONS[:length] >> (below - remainder_bits)).astype(np.int64)
    steepest = 2 * ONE * math.log(2) * 2.0 ** (below - remainder_bits - EXP_FRACTION.width)
    shift = math.floor(math.log2(((1 << slope_bits) - 1) / steepest))
    bases, slopes, floor = [], [], ONE
    for segment in range(1 << index_bits):
        target = TARGET[segment * length : (segment + 1) * length]
        rise = (target[-1] - target[0]) / r[-1] * (1 << shift)
        best = (float("inf"), 0, 0, 0)
        for slope in range(max(0, int(rise) - 2), min(int(rise) + 4, 1 << slope_bits)):
            gap = target * (1 << shift) - slope * r
            unit = 1 << (shift - guard_bits)
            middle = round(((gap.max() + gap.min()) / 2 + (1 << shift) / 2) / unit)
            for base in range((middle - 6) * unit, (middle + 7) * unit, unit):
                line = (base + slope * r) >> shift
                if line[0] < floor or line[-1] > EXP_MANTISSA.max or (segment == 0 and line[0] != ONE):
                    continue
                error = float(np.abs(line / target - 1).max())
                best = min(best, (error, base, slope, int(line[-1])))
        _, base, slope, floor = best
        bases.append(base)
        slopes.append(slope)
    table = Segments(index_bits, remainder_bits, shift, tuple(bases), tuple(slopes), Accuracy(0, 0))
    accuracy = certify(exp.segments_mantissa(table, FRACTIONS))
    return Segments(index_bits, remainder_bits, shift, tuple(bases), tuple(slopes), accuracy)


def fit_shift_add(
    factors: int,
    digits: int,
    residual_guard: int,
    mantissa_guard: int,
    ln2_bits: int,
    start_bias: int,
    end_bias: int,
) -> ShiftAdd:
    """Logarithms and ln 2, rounded. SHIFT_ADD_SIZES has the fewest adder bits of all small sizes tried."""
    scale = 1 << (EXP_FRACTION.width + residual_guard)
    with mpmath.workprec(ORACLE_BITS):
        logarithms = tuple(
            int(mpmath.nint(mpmath.log(1 + mpmath.mpf(2) ** -i, 2) * scale)) for i in range(1, factors + 1)
        )
        ln2 = int(mpmath.nint(mpmath.log(2) * (1 << ln2_bits)))
    sizes = (factors, digits, residual_guard, mantissa_guard, ln2, ln2_bits, start_bias, end_bias, logarithms)
    accuracy = certify(exp.shift_add_mantissa(ShiftAdd(*sizes, Accuracy(0, 0)), FRACTIONS))
    return ShiftAdd(*sizes, accuracy)


def generated() -> str:
    """The generated part of exp_table.py."""
    polynomials = {degree: fit_polynomial(degree) for degree in DEGREES}
    lookups = {sizes[0]: fit_lookup(*sizes) for sizes in LOOKUP_SIZES}
    segments = {sizes[0]: fit_segments(*sizes) for sizes in SEGMENT_SIZES}
    shift_adds = {sizes[1]: fit_shift_add(*sizes) for sizes in SHIFT_ADD_SIZES}
    parts: list[tuple[str, str, Mapping[int, Any]]] = [
        ("POLYNOMIALS: dict[int, Polynomial]", "By degree.", polynomials),
        ("LOOKUPS: dict[int, Lookup]", "By index bits.", lookups),
        ("SEGMENTS: dict[int, Segments]", "By index bits.", segments),
        ("SHIFT_ADDS: dict[int, ShiftAdd]", "By digits.", shift_adds),
    ]
    return "# fmt: off\n" + "".join(
        f"\n# {note}\n{name} = {{\n{_rows(table)}}}\n" for name, note, table in parts
    )


def _rows(table: Mapping[int, Any]) -> str:
    """One entry per key, wrapped."""
    return "".join(
        f"    {key}:\n{indent(pformat(value, width=100, compact=True), ' ' * 8)},\n"
        for key, value in table.items()
    )


def main(arguments: list[str] | None = None) -> int:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description="derive exp_table.py")
    parser.add_argument("--check", action="store_true", help="fail if the table would change")
    options = parser.parse_args(arguments)
    path = Path(exp_table.__file__)
    head, marker, tail = path.read_text().partition(MARKER)
    if not marker:
        raise ValueError(f"{path} lacks the line {MARKER!r}")
    text = generated()
    if options.check:
        print("unchanged" if text == tail else f"{path} differs from what this script derives")
        return int(text != tail)
    path.write_text(head + marker + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
