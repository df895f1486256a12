"""Root-complex latency that varies from read to read: a quantile function and a seed.

Source of the shapes: Neugebauer et al. (pcie-bench), SIGCOMM 2018, figure of 64-byte DMA read latencies.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction

from nearkv_sim.hardware.pcie_config import require_integer

__all__ = ["XEON_E3_TAIL", "XEON_E5_TAIL", "LatencyTail", "TailSampler"]


@dataclass(frozen=True)
class LatencyTail:
    """How much longer than the shortest a read takes, as (share of reads in ppm, extra ps) points.

    Formula: linear between points. Raises ValueError unless shares ascend from 0 to 1,000,000 and extras do
    not descend.
    """

    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        """Refuse what is no quantile function."""
        shares = [share for share, _ in self.points]
        extras = [extra for _, extra in self.points]
        if shares != sorted(set(shares)) or shares[:1] != [0] or shares[-1:] != [10**6]:
            raise ValueError(f"shares are {shares}; allowed: ascending from 0 to 1000000 ppm")
        for extra in extras:
            require_integer("extra_ps", extra, 0, 10**12)
        if extras != sorted(extras):
            raise ValueError(f"extras are {extras} ps; allowed: none below the one before")

    def extra_ps(self, share_ppm: Fraction) -> int:
        """Extra latency of the read that `share_ppm` of all reads do not exceed, rounded down."""
        for (low, low_ps), (high, high_ps) in zip(self.points, self.points[1:], strict=False):
            if share_ppm <= high:
                return int(low_ps + (high_ps - low_ps) * (share_ppm - low) / (high - low))
        raise ValueError(f"share_ppm is {share_ppm}; allowed: up to 1000000")


class TailSampler:
    """Draws from a `LatencyTail`; the same seed gives the same sequence."""

    def __init__(self, tail: LatencyTail, seed: int) -> None:
        """Start of the sequence."""
        self._tail, self._random = tail, random.Random(seed)

    def draw_ps(self) -> int:
        """Extra latency of the next read."""
        return self._tail.extra_ps(Fraction(self._random.randrange(10**9), 1000))


# Points of the paper's text (recalled, unconfirmed), relative to the shortest read.
# Xeon E5-2637v3: shortest 520 ns, median 547, 99.9 % within 600, longest 947.
XEON_E5_TAIL = LatencyTail(((0, 0), (500_000, 27_000), (999_000, 80_000), (10**6, 427_000)))
# Xeon E3-1226v3: shortest 493 ns, median 1213, 99 % below 5707, 99.9 % below 11,987.
XEON_E3_TAIL = LatencyTail(
    ((0, 0), (500_000, 720_000), (990_000, 5_214_000), (999_000, 11_494_000), (10**6, 11_494_000))
)
