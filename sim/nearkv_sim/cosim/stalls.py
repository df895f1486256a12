"""Seeded stall patterns of the sources and sinks around a compiled component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_ONE = 1 << 32  # probabilities travel to the driver as 32-bit fractions


@dataclass(frozen=True)
class Stalls:
    """Random pauses, drawn independently for every port from `seed` and the port's position.

    Args:
        seed: any integer; the same seed gives the same pauses in every run.
        input_probability: share of cycles in which a source pauses, 0 <= p < 1. A beat once offered stays
            offered until it is taken.
        output_probability: share of cycles in which a sink is not ready, 0 <= p < 1.
        mean_burst_cycles: mean length of a pause. None draws every cycle by itself (mean 1 / (1 - p));
            longer bursts at the same share empty and fill the buffers of a component.
        per_port: probabilities of single ports, by stream name.

    Raises ValueError for a value outside its range.

    """

    seed: int
    input_probability: float = 0.25
    output_probability: float = 0.25
    mean_burst_cycles: float | None = None
    per_port: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse shares and bursts that no generator can give."""
        named = {
            "input_probability": self.input_probability,
            "output_probability": self.output_probability,
            **{f"per_port[{name!r}]": value for name, value in self.per_port.items()},
        }
        for name, value in named.items():
            if not 0 <= value < 1:
                raise ValueError(f"{name} is {value}; allowed: 0 <= p < 1")
            if value and self.mean_burst_cycles is not None:
                # A pause begins with probability p / (b (1 - p)), which must be one.
                shortest = max(1.0, value / (1 - value))
                if self.mean_burst_cycles < shortest:
                    raise ValueError(
                        f"mean_burst_cycles is {self.mean_burst_cycles}; allowed for {name} {value}:"
                        f" at least {shortest:g}"
                    )

    def probability(self, port_name: str, *, is_input: bool) -> float:
        """Share of cycles in which that port pauses."""
        default = self.input_probability if is_input else self.output_probability
        return self.per_port.get(port_name, default)

    def thresholds(self, probability: float) -> tuple[int, int]:
        """(begin, continue): a pause begins or goes on if a 32-bit random number is below.

        Two-state Markov chain with stationary share p and mean pause length b: it goes on with 1 - 1/b and
        begins with p / (b (1 - p)).
        """
        if self.mean_burst_cycles is None or not probability:
            begin = go_on = probability
        else:
            begin = probability / (self.mean_burst_cycles * (1 - probability))
            go_on = 1 - 1 / self.mean_burst_cycles
        return min(round(begin * _ONE), _ONE), min(round(go_on * _ONE), _ONE)

    def port_seed(self, port_index: int) -> int:
        """64-bit state of a port's generator, never 0."""
        mask = (1 << 64) - 1
        x = (self.seed * 0x9E3779B97F4A7C15 + (port_index + 1) * 0xD1B54A32D192ED03) & mask
        # Finaliser of splitmix64: neighbouring seeds must not give shifted copies of one sequence.
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return (x ^ (x >> 31)) or 1
