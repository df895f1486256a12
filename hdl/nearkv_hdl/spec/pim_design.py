"""`PimDesign`: one frozen description of a PIM device's compute part."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nearkv_hdl.spec.attention import DEFAULT_DEGREE, DEGREES, FP16_BITS, LOGIT, SUM
from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.spec.layout import HEAD_DIMS

SLOTS = 2  # heads whose scores a unit holds at a time: one in its key phase, one waiting for its maximum
MIN_BEATS = 4  # beats of a row: cycles between two additions to one accumulator row
MIN_LANES = 4
MIN_PARTIAL_LANES = 2  # a partial's header needs two lanes


@dataclass(frozen=True)
class ReductionLevel:
    """One level of the reduction tree.

    Args:
        name: where its units sit.
        fan_in: partial results each of its units merges, from 2.

    """

    name: str
    fan_in: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        if self.fan_in < 2:
            raise ValueError(f"fan_in of level {self.name} is {self.fan_in}; allowed: from 2")


@dataclass(frozen=True)
class Published:
    """What the paper says of a device, to compare ours with.

    Args:
        buffer_bytes: of a unit.
        unit_area_mm2: None where only the whole device's is given.
        reduction_unit_area_mm2: likewise.
        device_area_mm2: None where only the units' are given.
        gflops: of the device, under its power cap.

    """

    buffer_bytes: int
    unit_area_mm2: float | None
    reduction_unit_area_mm2: float | None
    device_area_mm2: float | None
    gflops: float


@dataclass(frozen=True)
class PimDesign:
    """Parameters of a device's processing units and reduction network.

    Args:
        name: what the command line calls it.
        lanes: FP16 multiply-add lanes of a unit, a power of two from 4.
        head_dim: channels of a row, at least 4·lanes and a multiple of 2·lanes, at most 256.
        block_tokens: scores a unit can hold per slot, a power of two from 2.
        partial_lanes: sums per beat of a partial result, a power of two from 2 to head_dim.
        dividers: elements the final division takes per cycle, a power of two up to partial_lanes.
        levels: the reduction tree from the units upwards.
        rtl_levels: how many of its levels are instantiated as RTL; larger counts are computed.
        clock_hz: clock of the units.
        published: the paper's figures; None for a design of our own.
        degree: of the polynomial, 2 to 6.

    Raises ValueError that quotes the value and says what is allowed.

    """

    name: str
    lanes: int
    head_dim: int
    block_tokens: int
    partial_lanes: int
    dividers: int
    levels: tuple[ReductionLevel, ...]
    rtl_levels: int
    clock_hz: int
    published: Published | None = None
    degree: int = DEFAULT_DEGREE

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not (is_power_of_two(self.lanes) and self.lanes >= MIN_LANES):
            raise ValueError(f"lanes is {self.lanes}; allowed: a power of two from {MIN_LANES}")
        if (
            not MIN_BEATS * self.lanes <= self.head_dim <= HEAD_DIMS[-1]
            or self.head_dim % (2 * self.lanes)
            or self.head_dim % self.partial_lanes
        ):
            raise ValueError(
                f"head_dim is {self.head_dim} with lanes {self.lanes} and partial_lanes"
                f" {self.partial_lanes}; allowed: {MIN_BEATS * self.lanes} to {HEAD_DIMS[-1]}, a multiple of"
                f" {2 * self.lanes} and of partial_lanes"
            )
        if not (is_power_of_two(self.block_tokens) and self.block_tokens >= 2):
            raise ValueError(f"block_tokens is {self.block_tokens}; allowed: a power of two from 2")
        if not (
            is_power_of_two(self.partial_lanes) and self.partial_lanes >= max(self.lanes, MIN_PARTIAL_LANES)
        ):
            raise ValueError(
                f"partial_lanes is {self.partial_lanes}; allowed: a power of two from"
                f" {max(self.lanes, MIN_PARTIAL_LANES)}"
            )
        if not (is_power_of_two(self.dividers) and self.dividers <= self.partial_lanes):
            raise ValueError(
                f"dividers is {self.dividers}; allowed: a power of two up to {self.partial_lanes}"
            )
        if not 1 <= self.rtl_levels <= len(self.levels):
            raise ValueError(
                f"rtl_levels is {self.rtl_levels}; allowed: 1 to {len(self.levels)}, the levels there are"
            )
        if self.clock_hz <= 0:
            raise ValueError(f"clock_hz is {self.clock_hz}; allowed: above 0")
        if self.degree not in DEGREES:
            raise ValueError(f"degree is {self.degree}; allowed: {', '.join(map(str, DEGREES))}")

    @property
    def beats(self) -> int:
        """Lane beats of one row."""
        return self.head_dim // self.lanes

    @property
    def partial_beats(self) -> int:
        """Beats of a partial result after its header."""
        return self.head_dim // self.partial_lanes

    @property
    def fan_ins(self) -> tuple[int, ...]:
        """Fan-in of every level of the device."""
        return tuple(level.fan_in for level in self.levels)

    @property
    def rtl_fan_ins(self) -> tuple[int, ...]:
        """Fan-ins of the instantiated levels."""
        return self.fan_ins[: self.rtl_levels]

    @property
    def units(self) -> int:
        """Processing units of the device."""
        return prod(self.fan_ins)

    @property
    def rtl_units(self) -> int:
        """Processing units that are instantiated."""
        return prod(self.rtl_fan_ins)

    @property
    def reduction_units(self) -> tuple[int, ...]:
        """Reduction units of the device at every level, from the units upwards."""
        return tuple(self.units // prod(self.fan_ins[: level + 1]) for level in range(len(self.levels)))

    @property
    def rtl_reduction_units(self) -> tuple[int, ...]:
        """Reduction units that are instantiated at every level: the group's own, and one above it."""
        own = (self.rtl_units // prod(self.fan_ins[: level + 1]) for level in range(self.rtl_levels))
        return (*own, *(1 for _ in self.levels[self.rtl_levels :]))

    @property
    def tokens(self) -> int:
        """Tokens of a head that the score memories of all units hold."""
        return self.units * self.block_tokens

    @property
    def peak_flops(self) -> int:
        """Multiplications and additions of all lanes per second."""
        return 2 * self.units * self.lanes * self.clock_hz

    # What a unit stores, in bytes.

    @property
    def query_bytes(self) -> int:
        """One FP16 query."""
        return self.head_dim * FP16_BITS // 8

    @property
    def accumulator_bytes(self) -> int:
        """48-bit sums of one head."""
        return self.head_dim * SUM.width // 8

    @property
    def score_bytes(self) -> int:
        """Scores kept between the phases."""
        return SLOTS * self.block_tokens * LOGIT.width // 8
