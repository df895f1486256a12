"""Temperature of an FPGA: one thermal resistance and one heat capacity, with throttling and shutdown.

Formula: C·dT/dt = P − (T − T_ambient)/R. Over an interval of constant power the solution is exact:
    T(t) = T_end + (T(0) − T_end)·exp(−t/(R·C)),  T_end = T_ambient + P·R,
so that a state does not depend on how an interval is cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nearkv_sim.hardware.link_pipe import PS_PER_S


@dataclass(frozen=True, kw_only=True)
class ThermalConfig:
    """An FPGA in its case. ValueError unless ambient < release < throttle < shutdown, and R, C above 0.

    Attributes:
        ambient_c: air at the inlet.
        resistance_k_per_w: die to air.
        capacity_j_per_k: of what the die heats.
        throttle_c, release_c: the clock is lowered at the one and raised again at the other.
        shutdown_c: the card cuts its power.
        throttled_clock_share: share of the clock while it is lowered.

    """

    ambient_c: float
    resistance_k_per_w: float
    capacity_j_per_k: float
    throttle_c: float
    release_c: float
    shutdown_c: float
    throttled_clock_share: float

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not self.ambient_c < self.release_c < self.throttle_c < self.shutdown_c:
            raise ValueError(
                f"ambient_c, release_c, throttle_c, shutdown_c are {self.ambient_c}, {self.release_c},"
                f" {self.throttle_c}, {self.shutdown_c}; allowed: ascending"
            )
        if self.resistance_k_per_w <= 0 or self.capacity_j_per_k <= 0:
            raise ValueError(
                f"resistance_k_per_w is {self.resistance_k_per_w} and capacity_j_per_k"
                f" {self.capacity_j_per_k}; allowed: above 0"
            )
        if not 0 < self.throttled_clock_share <= 1:
            raise ValueError(f"throttled_clock_share is {self.throttled_clock_share}; allowed: above 0, to 1")

    def steady_c(self, power_w: float) -> float:
        """Temperature that constant power leads to."""
        return self.ambient_c + power_w * self.resistance_k_per_w


class FpgaThermal:
    """Temperature over time.

    Attributes:
        config: the constants.
        temperature_c: now; starts at ambient.
        throttled: the clock is lowered.
        shut_down: the card has cut its power; stays so.

    """

    def __init__(self, config: ThermalConfig) -> None:
        """Start at ambient temperature."""
        self.config = config
        self.temperature_c = config.ambient_c
        self.throttled = False
        self.shut_down = False

    @property
    def clock_share(self) -> float:
        """Share of the nominal clock: 1, the throttled share, or 0 after a shutdown."""
        if self.shut_down:
            return 0.0
        return self.config.throttled_clock_share if self.throttled else 1.0

    def advance(self, time_ps: int, power_w: float) -> float:
        """Spend `time_ps` at constant power and return the temperature; flags follow the end of it.

        The trend is monotonic within an interval, so only its end has to be compared. After a shutdown
        the card draws nothing.

        Raises:
            ValueError: time or power below 0.

        """
        if time_ps < 0 or power_w < 0:
            raise ValueError(f"time_ps is {time_ps} and power_w {power_w}; allowed: from 0")
        config = self.config
        end_c = config.steady_c(0.0 if self.shut_down else power_w)
        constant_s = config.resistance_k_per_w * config.capacity_j_per_k
        decay = math.exp(-time_ps / PS_PER_S / constant_s)
        self.temperature_c = end_c + (self.temperature_c - end_c) * decay
        if self.temperature_c >= config.shutdown_c:
            self.shut_down = True
        if self.temperature_c >= config.throttle_c:
            self.throttled = True
        elif self.temperature_c <= config.release_c:
            self.throttled = False
        return self.temperature_c
