"""Energy by component: so much per byte moved, per operation, and per second of idling.

Dynamic energy is counted in whole femtojoules, so that a sum does not depend on its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

FJ_PER_PJ = 1000
FJ_PER_J = 10**15


@dataclass(frozen=True)
class EnergyShare:
    """Energy of one component, in femtojoules.

    Attributes:
        component: its name in the machine.
        dynamic_fj: of bytes and operations.
        static_fj: of power drawn for as long as the work lasts.

    """

    component: str
    dynamic_fj: int
    static_fj: int

    @property
    def joules(self) -> float:
        """Both, in joules."""
        return (self.dynamic_fj + self.static_fj) / FJ_PER_J


class EnergyMeter:
    """Sums energy per component; ValueError for negative amounts."""

    def __init__(self) -> None:
        """Start at zero."""
        self._dynamic: dict[str, int] = {}
        self._static: dict[str, int] = {}

    def add_bytes(self, component: str, nbytes: int, pj_per_byte: float) -> None:
        """Count bytes moved by a component."""
        self._add(self._dynamic, component, nbytes, pj_per_byte)

    def add_flops(self, component: str, flops: int, pj_per_flop: float) -> None:
        """Count operations of a component."""
        self._add(self._dynamic, component, flops, pj_per_flop)

    def add_power(self, component: str, time_ps: int, power_w: float) -> None:
        """Count power over a time: 1 W over 1 ps is 1 pJ."""
        self._add(self._static, component, time_ps, power_w)

    @property
    def shares(self) -> tuple[EnergyShare, ...]:
        """Every component's energy, by name."""
        names = sorted(self._dynamic | self._static)
        return tuple(
            EnergyShare(name, self._dynamic.get(name, 0), self._static.get(name, 0)) for name in names
        )

    @property
    def joules(self) -> float:
        """All of it."""
        return (sum(self._dynamic.values()) + sum(self._static.values())) / FJ_PER_J

    @staticmethod
    def _add(account: dict[str, int], component: str, amount: int, picojoules: float) -> None:
        if amount < 0 or picojoules < 0:
            raise ValueError(f"energy of {component} is {amount} × {picojoules} pJ; allowed: from 0")
        femtojoules = round(amount * Fraction(str(picojoules)) * FJ_PER_PJ)
        account[component] = account.get(component, 0) + femtojoules
