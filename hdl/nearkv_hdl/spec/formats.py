"""Number formats: what a bit pattern means, and how formats grow through exact arithmetic.

A `Format` travels with every integer that crosses a module boundary, so that signedness, position of the
binary point, rounding and overflow are read from one place by RTL, golden models and host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Rounding(Enum):
    """How bits below the last one are dropped."""

    EXACT = "exact"  # nothing is ever dropped
    HALF_UP = "half-up"  # rhu(x, k) = (x + 2^(k-1)) >> k, arithmetic
    FLOOR = "floor"
    NEAREST_EVEN = "nearest-even"


class Overflow(Enum):
    """What happens to a value outside the range."""

    NEVER = "never"  # the range is proven to suffice
    ERROR = "error"  # refused by the host, flagged by the hardware
    SATURATE = "saturate"
    WRAP = "wrap"


@dataclass(frozen=True)
class Format:
    """A fixed-point number: value = integer · 2^-fraction_bits, integer of `width` bits.

    Raises ValueError for a width below 1 (2 if signed) or above 64.
    """

    width: int
    signed: bool
    fraction_bits: int = 0
    rounding: Rounding = Rounding.EXACT
    overflow: Overflow = Overflow.NEVER

    def __post_init__(self) -> None:
        """Check the width."""
        if not (2 if self.signed else 1) <= self.width <= 64:
            raise ValueError(
                f"width is {self.width}; allowed: {2 if self.signed else 1} to 64 bits"
                f" for {'signed' if self.signed else 'unsigned'} formats"
            )

    @property
    def min(self) -> int:
        """Smallest integer."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def max(self) -> int:
        """Largest integer."""
        return (1 << (self.width - self.signed)) - 1

    @property
    def lsb(self) -> float:
        """Weight of the last bit."""
        return 2.0**-self.fraction_bits

    @property
    def name(self) -> str:
        """Q notation: `SQ7.0` has 7 integer bits beside the sign, `UQ1.15` one and 15 fraction bits."""
        integer_bits = self.width - self.signed - self.fraction_bits
        return f"{'S' if self.signed else 'U'}Q{integer_bits}.{self.fraction_bits}"

    def contains(self, value: int) -> bool:
        """Whether the integer is representable."""
        return self.min <= value <= self.max

    def product(self, other: Format) -> Format:
        """Format of the exact product of two values (the corner min·min included)."""
        signed = self.signed or other.signed
        return Format(
            width=self.width + other.width,
            signed=signed,
            fraction_bits=self.fraction_bits + other.fraction_bits,
        )

    def sum_of(self, terms: int) -> Format:
        """Format of the exact sum of `terms` values (ceil(log2(terms)) more bits)."""
        if terms < 1:
            raise ValueError(f"terms is {terms}; a sum has at least 1 term")
        return replace(
            self,
            width=self.width + (terms - 1).bit_length(),
            rounding=Rounding.EXACT,
            overflow=Overflow.NEVER,
        )


def is_power_of_two(value: int) -> bool:
    """Whether the integer is 1, 2, 4 and so on."""
    return value > 0 and value & (value - 1) == 0


def rhu(x: int, k: int) -> int:
    """Round half up: (x + 2^(k-1)) >> k for k > 0, identity at k = 0, exact left shift for k < 0."""
    if k <= 0:
        return x << -k
    return (x + (1 << (k - 1))) >> k


# The scorer's formats. A code is one of 256 levels of a channel; its planes are nibbles.
CODE = Format(8, signed=True)
CODE_HIGH_NIBBLE = Format(4, signed=True)
CODE_LOW_NIBBLE = Format(4, signed=False)
# Scores are base-2 logits with L fraction bits; L is chosen per query, so the format's own point is 0.
SCORE = Format(32, signed=True, overflow=Overflow.ERROR)
BIAS = Format(32, signed=True, overflow=Overflow.ERROR)
TWICE_LOW_NIBBLE_MIDDLE = (
    15  # twice 7½, the middle of the 16 codes that share a high nibble: INT4's part of the bias
)
BIAS_GUARD_BITS = 8  # each product of the bias is rounded at 2^-8 of a score's last bit
SHIFT = Format(3, signed=False, overflow=Overflow.ERROR)
TOKEN_INDEX = Format(32, signed=False, overflow=Overflow.ERROR)
# A prepared query before folding: signed 16-bit mantissas under one exponent per query head.
QUERY_MANTISSA = Format(16, signed=True, rounding=Rounding.HALF_UP)


def folded_query(query_bits: int) -> Format:
    """Format of a folded query code: symmetric, |q'| <= 2^(bits-1) - 1."""
    if query_bits not in (8, 10, 12):
        raise ValueError(f"query_bits is {query_bits}; allowed: 8, 10, 12")
    return Format(query_bits, signed=True, rounding=Rounding.HALF_UP, overflow=Overflow.ERROR)
