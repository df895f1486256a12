"""A partial result as bytes for a link: exact header, a shift per group of channels, 8-bit codes.

    byte 0          l, 48 bit signed
    byte 6          m, 32 bit signed
    byte 10         E_V in bits 0–5
    byte 11         bit 0: merge; bit 1: a maximum alone, nothing follows the prefix
    byte 12         one shift e per group, 0 to MAX_SHIFT
    to prefix_bytes zeros, so that codes begin on a beat
    then            one signed code per channel; a sum is code · 2^e

Everything is little-endian. Bits of bytes 10 and 11 without a meaning are 0 and not looked at. e is the
smallest shift with max |o| < 127.5 · 2^e over the group, and a code (o + 2^(e−1)) >> e, so codes lie within
±127. The layout is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_hdl.spec.attention import SUM, groups_of
from nearkv_hdl.spec.formats import CODE, is_power_of_two

HEADER_BYTES = 2 * SUM.width // 8  # l; m with E_V and two flags
MERGE_BIT, ALONE_BIT = 0, 1  # of byte 11

_MIN_BEAT_BYTES, _MAX_BEAT_BYTES = 4, 64


def max_shift(sum_bits: int) -> int:
    """The largest shift of signed sums of that width, for both ends; ValueError where codes hold them all."""
    if sum_bits <= CODE.width:
        raise ValueError(f"sum_bits is {sum_bits}; allowed: from {CODE.width + 1}")
    return sum_bits - CODE.width + 1


MAX_SHIFT = max_shift(SUM.width)


def partial_bytes(head_dim: int) -> int:
    """Bytes of a partial result with 48-bit sums: the header and all of them."""
    return HEADER_BYTES + head_dim * SUM.width // 8


@dataclass(frozen=True)
class PackedPartial:
    """Sizes of a packed partial result on a link.

    Args:
        head_dim: channels, up to 32 or a multiple of 32.
        beat_bytes: width of the link, a power of two from 4 to 64 that divides head_dim.

    Raises ValueError that quotes the value and says what is allowed.

    """

    head_dim: int
    beat_bytes: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        groups_of(self.head_dim)
        if (
            not (is_power_of_two(self.beat_bytes) and _MIN_BEAT_BYTES <= self.beat_bytes <= _MAX_BEAT_BYTES)
            or self.head_dim % self.beat_bytes
        ):
            raise ValueError(
                f"beat_bytes is {self.beat_bytes} with head_dim {self.head_dim}; allowed: a power of two"
                f" from {_MIN_BEAT_BYTES} to {_MAX_BEAT_BYTES} that divides head_dim"
            )

    @property
    def groups(self) -> int:
        """Groups of channels with a shift of their own."""
        return groups_of(self.head_dim)

    @property
    def group_channels(self) -> int:
        """Channels of a group."""
        return self.head_dim // self.groups

    @property
    def prefix_beats(self) -> int:
        """Beats of header and shifts; a maximum alone is as long."""
        return -(-(HEADER_BYTES + self.groups) // self.beat_bytes)

    @property
    def prefix_bytes(self) -> int:
        """Bytes before the codes, padding included."""
        return self.prefix_beats * self.beat_bytes

    @property
    def code_beats(self) -> int:
        """Beats of codes."""
        return self.head_dim // self.beat_bytes

    @property
    def record_beats(self) -> int:
        """Beats of one head's partial result."""
        return self.prefix_beats + self.code_beats

    @property
    def record_bytes(self) -> int:
        """Bytes of one head's partial result."""
        return self.record_beats * self.beat_bytes
