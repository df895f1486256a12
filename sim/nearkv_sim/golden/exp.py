"""Golden twins of the exp units: whole-array integer numpy, one class per RTL component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from nearkv.codec.rounding import rhu
from nearkv_hdl.spec.exp_table import (
    COEFFICIENT_FRACTION_BITS,
    EXP_ARGUMENT,
    EXP_EXPONENT,
    EXP_FRACTION,
    EXP_MANTISSA,
    LOOKUPS,
    POLYNOMIALS,
    SEGMENTS,
    SHIFT_ADDS,
    Lookup,
    Segments,
    ShiftAdd,
)
from nearkv_hdl.spec.formats import Format

Integers = npt.NDArray[np.int64]
Constants = TypeVar("Constants")
LAST_SHIFT = COEFFICIENT_FRACTION_BITS + EXP_FRACTION.fraction_bits - EXP_MANTISSA.fraction_bits


def check_range(name: str, values: npt.ArrayLike, number: Format) -> Integers:
    """The values as int64; ValueError that quotes the first one outside the format."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {array.dtype}; allowed: integers")
    array = array.astype(np.int64)
    outside = (array < number.min) | (array > number.max)
    if outside.any():
        raise ValueError(
            f"{name} is {array[outside].flat[0]}; allowed: {number.min} to {number.max} ({number.name})"
        )
    return array


class Power(NamedTuple):
    """2^x: mantissa · 2^exponent, and whether the mantissa was rounded up."""

    exponent: Integers
    mantissa: Integers
    rounded_up: Integers


class Exp2Core(Protocol):
    """What computes the mantissa of 2^f."""

    def mantissa(self, f: npt.ArrayLike) -> Integers:
        """2^f in UQ1.15 for fractions in UQ0.16."""

    def rounded_up(self, f: npt.ArrayLike) -> Integers:
        """1 where the value before the last rounding lies below the mantissa."""


class Exp2Polynomial:
    """Twin of `nearkv_hdl.arith.exp_polynomial.Exp2Polynomial`."""

    def __init__(self, degree: int = 3) -> None:
        self.constants = pick("degree", degree, POLYNOMIALS)

    def mantissa(self, f: npt.ArrayLike) -> Integers:
        """a = c_d; a ← c_k + rhu(a·f, 16) down to k = 1; 2^15 + rhu(a·f, 18)."""
        return polynomial_mantissa(self.constants.coefficients, check_range("f", f, EXP_FRACTION))

    def rounded_up(self, f: npt.ArrayLike) -> Integers:
        """The bit below the last one."""
        fraction = check_range("f", f, EXP_FRACTION)
        product = first_accumulator(self.constants.coefficients, fraction) * fraction
        return product >> (LAST_SHIFT - 1) & 1


class Exp2Lookup:
    """Twin of `nearkv_hdl.arith.exp_lookup.Exp2Lookup`."""

    def __init__(self, index_bits: int = 12) -> None:
        self.constants = pick("index_bits", index_bits, LOOKUPS)

    def mantissa(self, f: npt.ArrayLike) -> Integers:
        """Entry at the nearest index; past the last one, the largest mantissa."""
        return lookup_mantissa(self.constants, check_range("f", f, EXP_FRACTION))

    def rounded_up(self, f: npt.ArrayLike) -> Integers:
        """Unknown to an entry: 0."""
        return np.zeros_like(check_range("f", f, EXP_FRACTION))


class Exp2Segments:
    """Twin of `nearkv_hdl.arith.exp_lookup.Exp2Segments`."""

    def __init__(self, index_bits: int = 5) -> None:
        self.constants = pick("index_bits", index_bits, SEGMENTS)

    def mantissa(self, f: npt.ArrayLike) -> Integers:
        """(base + slope·r) >> k."""
        return segments_mantissa(self.constants, check_range("f", f, EXP_FRACTION))

    def rounded_up(self, f: npt.ArrayLike) -> Integers:
        """Complement of the bit below the last one: the base holds half a unit."""
        doubled = replace(self.constants, product_fraction_bits=self.constants.product_fraction_bits - 1)
        return ~segments_mantissa(doubled, check_range("f", f, EXP_FRACTION)) & 1


class Exp2ShiftAdd:
    """Twin of `nearkv_hdl.arith.exp_shift_add.Exp2ShiftAdd`."""

    def __init__(self, digits: int = 14) -> None:
        self.constants = pick("digits", digits, SHIFT_ADDS)

    def mantissa(self, f: npt.ArrayLike) -> Integers:
        """Factors 1 + 2^-i whose logarithms add up to f, then one product with what is left."""
        return shift_add_mantissa(self.constants, check_range("f", f, EXP_FRACTION))

    def rounded_up(self, f: npt.ArrayLike) -> Integers:
        """Complement of the bit below the last one, as the biases are half a unit; 0 without guard bits."""
        fraction = check_range("f", f, EXP_FRACTION)
        if not self.constants.mantissa_guard:
            return np.zeros_like(fraction)
        return ~shift_add_product(self.constants, fraction) >> (self.constants.mantissa_guard - 1) & 1


class ExpUnit:
    """Twin of `nearkv_hdl.arith.exp_unit.ExpUnit`."""

    def __init__(self, core: Exp2Core | None = None) -> None:
        self.core = core or Exp2Polynomial()

    def evaluate(self, x: npt.ArrayLike) -> Power:
        """2^x for x in SQ15.16."""
        argument = check_range("x", x, EXP_ARGUMENT)
        f = argument & EXP_FRACTION.max
        return Power(argument >> EXP_ARGUMENT.fraction_bits, self.core.mantissa(f), self.core.rounded_up(f))


class ExpToFp16:
    """Twin of `nearkv_hdl.arith.exp_fp16.ExpToFp16`."""

    MIN_NORMAL = -14  # exponent of the smallest normal number
    INFINITY = 0x7C00
    DROPPED = 5  # mantissa bits that binary16 has no room for

    def convert(
        self, exponent: npt.ArrayLike, mantissa: npt.ArrayLike, rounded_up: npt.ArrayLike
    ) -> Integers:
        """Bit pattern of mantissa·2^(exponent - 15), to nearest; midway, down if rounded up before."""
        n = check_range("exponent", exponent, EXP_EXPONENT)
        m = check_range("mantissa", mantissa, EXP_MANTISSA)
        if (m < 1 << EXP_MANTISSA.fraction_bits).any():
            raise ValueError(f"mantissa is {m.min()}; allowed: from 32768, that is 1.0")
        below = np.clip(self.MIN_NORMAL - n, 0, 16)  # places below the smallest normal number
        drop = self.DROPPED + below
        # Half a unit below the mantissa if it was rounded up, so that midway is no case of its own.
        significand = (2 * m - np.asarray(rounded_up, dtype=np.int64) + (1 << drop)) >> (drop + 1)
        # A normal number's leading one is added to the exponent field, so fields start one lower.
        field = np.clip(n - self.MIN_NORMAL, 0, 31)
        bits: Integers = np.minimum((field << 10) + significand, self.INFINITY)
        return bits


def pick(name: str, key: int, known: Mapping[int, Constants]) -> Constants:
    """Constants of that key; ValueError lists the known ones."""
    if key not in known:
        raise ValueError(f"{name} is {key!r}; allowed: {', '.join(map(str, known))}")
    return known[key]


def first_accumulator(coefficients: tuple[int, ...], f: Integers) -> Integers:
    """(2^f - 1) / f in Horner form, one rounding per step: the largest accumulator, 17 fraction bits."""
    a = np.full_like(f, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        a = c + rhu(a * f, EXP_FRACTION.fraction_bits)
    return a


def polynomial_mantissa(coefficients: tuple[int, ...], f: Integers) -> Integers:
    """1 + f · first_accumulator, rounded to the mantissa."""
    return (1 << EXP_MANTISSA.fraction_bits) + rhu(first_accumulator(coefficients, f) * f, LAST_SHIFT)


def lookup_mantissa(table: Lookup, f: Integers) -> Integers:
    """Nearest entry."""
    entries: Integers = np.array([*table.entries, EXP_MANTISSA.max], dtype=np.int64)
    nearest: Integers = entries[rhu(f, EXP_FRACTION.fraction_bits - table.index_bits)]
    return nearest


def segments_mantissa(table: Segments, f: Integers) -> Integers:
    """A straight line per segment."""
    below = EXP_FRACTION.fraction_bits - table.index_bits
    index = f >> below
    r = (f & ((1 << below) - 1)) >> (below - table.remainder_bits)
    bases, slopes = np.array(table.bases, dtype=np.int64), np.array(table.slopes, dtype=np.int64)
    mantissas: Integers = (bases[index] + slopes[index] * r) >> table.product_fraction_bits
    return mantissas


def shift_add_product(table: ShiftAdd, f: Integers) -> Integers:
    """Pseudo-multiplication, guard bits included."""
    left = f << table.residual_guard
    y = np.full_like(f, (1 << (EXP_MANTISSA.fraction_bits + table.mantissa_guard)) + table.start_bias)
    for i, logarithm in enumerate(table.logarithms, start=1):
        taken = left >= logarithm
        left = left - np.where(taken, logarithm, 0)
        y = y + np.where(taken, y >> i, 0)
    z = rhu(left * table.ln2, table.ln2_bits) >> (
        EXP_FRACTION.fraction_bits + table.residual_guard - table.digits
    )
    product = y
    for i in range(table.factors, table.digits + 1):
        product = product + (y >> i) * (z >> (table.digits - i) & 1)
    return product + table.end_bias


def shift_add_mantissa(table: ShiftAdd, f: Integers) -> Integers:
    """Pseudo-multiplication, guard bits dropped."""
    return shift_add_product(table, f) >> table.mantissa_guard
