"""Attention of one decode step on a machine: where the KV cache lies, who reads it, and what is busiest.

Weights fill the tiers that hold KV and, before them, the memory of the first processor; the cache fills what
is left, in the order of the machine file. Then every tier works on its own share, side by side:

* a GPU, CPU or PIM unit at the tier attends to its rows in place;
* a tier next to a scoring card has its INT8 key codes (a quarter of an FP16 cache) scored there. Codes that
  fit in the card's memory are cached in it, the others are streamed through; then the selected rows go to the
  attending processor, in one transfer as if they lay together: a lower bound where they are scattered;
* rows of any other tier go to the attending processor, all of them.
The time is that of the slowest tier, or of the busiest resource where tiers share one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nearkv.machine import TierKind, Timing
from nearkv_sim.hardware.energy import EnergyMeter, EnergyShare
from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_fill import fill_tiers
from nearkv_sim.hardware.machine_units import NearMemoryUnit, RooflineUnit, ScorerUnit
from nearkv_sim.hardware.model_shapes import ModelShape
from nearkv_sim.hardware.roofline import Kernel, exact, kernel_time

KEYS_AND_VALUES = 2  # only keys have codes, of one byte a channel


@dataclass(frozen=True)
class TierShare:
    """What one tier does.

    Attributes:
        tier: its name.
        weight_bytes, kv_bytes: what it holds.
        how: in place, scored, or moved; "" without KV.
        timing: of its part of the attention, None without KV.

    """

    tier: str
    weight_bytes: int
    kv_bytes: int
    how: str
    timing: Timing | None


@dataclass(frozen=True)
class AttentionStep:
    """Attention of one step.

    Attributes:
        shares: tier by tier.
        timing: of the whole; nbytes is the KV cache.
        energy: by component; idle power is counted for the whole time.

    """

    shares: tuple[TierShare, ...]
    timing: Timing
    energy: tuple[EnergyShare, ...]


def attention_step(
    machine: ModelMachine,
    shape: ModelShape,
    context_tokens: int,
    batch: int,
    *,
    select_fraction: float = 0.1,
    near_data: bool = True,
) -> AttentionStep:
    """Time attention of one decode step.

    Args:
        machine: the machine.
        shape: the model.
        context_tokens: tokens of every sequence.
        batch: sequences.
        select_fraction: share of the rows that is fetched where a scorer selects, above 0, to 1.
        near_data: False lets the first processor alone attend, to rows that are all moved to it: the
            offloading baseline.

    Raises:
        ValueError: a bad argument, no GPU or CPU, or a cache that does not fit.

    """
    if not 0 < select_fraction <= 1:
        raise ValueError(f"select_fraction is {select_fraction!r}; allowed: above 0, to 1")
    planner = _Planner(machine, shape, context_tokens, batch, select_fraction, near_data)
    shares = planner.shares()
    timings = [share.timing for share in shares if share.timing is not None]
    busy: Counter[str] = Counter()
    for timing in timings:
        busy.update(timing.busy_ps)
    time_ps = max(*(timing.time_ps for timing in timings), *busy.values())
    kv_bytes = shape.kv_bytes(context_tokens, batch)
    for name, unit in machine.units.items():
        planner.meter.add_power(name, time_ps * unit.count, unit.idle_power_w)
    return AttentionStep(tuple(shares), Timing(time_ps, kv_bytes, dict(busy)), planner.meter.shares)


class _Planner:
    """Placement and timing of one step."""

    def __init__(
        self,
        machine: ModelMachine,
        shape: ModelShape,
        context: int,
        batch: int,
        select_fraction: float,
        near_data: bool,
    ) -> None:
        self.machine, self.shape, self.context, self.batch = machine, shape, context, batch
        self.kv_total = shape.kv_bytes(context, batch)
        self.select_fraction = exact(select_fraction)
        self.near_data = near_data
        self.meter = EnergyMeter()
        attenders = [name for name, unit in machine.units.items() if isinstance(unit, RooflineUnit)]
        if not attenders:
            raise ValueError(f"machine {machine.name} has no GPU or CPU; attention needs one")
        self.attender = attenders[0]

    def shares(self) -> list[TierShare]:
        weights = self.shape.weight_bytes
        placed = fill_tiers(self.machine.description, weights, self.kv_total)
        if not placed.fits:
            raise ValueError(
                f"{weights} bytes of weights and {self.kv_total} of KV cache leave"
                f" {placed.weight_bytes_left} and {placed.kv_bytes_left} without a place on"
                f" {self.machine.name}; allowed: what its tiers hold"
            )
        return [self._share(tier.tier, tier.weight_bytes, tier.kv_bytes) for tier in placed.tiers]

    def _share(self, tier: str, weights: int, kv: int) -> TierShare:
        if not kv:
            return TierShare(tier, weights, 0, "", None)
        unit = self._unit_at(tier)
        card = self._card_of(tier)
        if unit is not None:
            how, timing = f"in place by {unit}", self._in_place(unit, kv)
        elif card is not None:
            how, timing = f"scored by {card}, selection moved", self._scored(card, tier, kv)
        else:
            how, timing = "moved", self._moved(tier, kv)
        return TierShare(tier, weights, kv, how, timing)

    def _unit_at(self, tier: str) -> str | None:
        for name, unit in self.machine.units.items():
            works = name == self.attender or (self.near_data and not isinstance(unit, ScorerUnit))
            if works and self.machine.tier_of(name) == tier:
                return name
        return None

    def _card_of(self, tier: str) -> str | None:
        """The scorer that a drive's codes go to; rows of other memory without a processor are moved."""
        if not self.near_data or self.machine.description.tier(tier).kind is not TierKind.DRIVE:
            return None
        scorers = (name for name, unit in self.machine.units.items() if isinstance(unit, ScorerUnit))
        return next(scorers, None)

    def _in_place(self, name: str, kv: int) -> Timing:
        unit = self.machine.unit(name)
        tier = self.machine.tier_of(name)
        flops = self._flops(kv)
        self.meter.add_bytes(tier, kv, self._tier_pj(name))
        if isinstance(unit, NearMemoryUnit):
            self.meter.add_flops(name, flops, unit.config.pj_per_flop)
            heads = self.batch * self.shape.query_heads
            tokens = max(1, self.context * kv // self.kv_total)
            layer = unit.attention_ps(tokens, heads, self.shape.head_dim)
            busy = {resource: self.shape.layers * time for resource, time in layer.items()}
            if not self.machine.in_memory(name):
                busy[tier] = self.machine.stages(tier, self._home)[0].time_ps(kv)
            return Timing(max(busy.values()), kv, busy)
        if not isinstance(unit, RooflineUnit):
            raise AssertionError(f"{name} does not attend")
        self.meter.add_flops(name, flops, unit.config.pj_per_flop)
        kernel = Kernel("attention", flops // unit.count, kv // unit.count)
        time_ps = kernel_time(unit.config, kernel).time_ps
        return Timing(time_ps, kv, {name: time_ps})

    def _moved(self, tier: str, kv: int) -> Timing:
        transfer = self.machine.transfer(tier, self._home, kv)
        self._count_transfer(tier, kv)
        attended = self._in_place(self.attender, kv)
        busy = dict(transfer.busy_ps) | dict(attended.busy_ps)
        return Timing(max(transfer.time_ps, attended.time_ps), kv, busy)

    def _scored(self, card: str, tier: str, kv: int) -> Timing:
        unit = self.machine.unit(card)
        if not isinstance(unit, ScorerUnit):
            raise AssertionError(f"{card} does not score")
        memory = self.machine.tier_of(card)
        codes = max(1, kv // (KEYS_AND_VALUES * self.shape.bytes_per_value))
        cached = min(codes, self.machine.description.tier(memory).capacity_bytes)
        busy: Counter[str] = Counter(self.machine.scan(card, codes).busy_ps)
        tokens = max(1, self.context * kv // self.kv_total)
        selections = self.shape.layers * self.shape.query_heads * self.batch
        k = max(1, int(tokens * self.select_fraction))
        busy[f"{card}: top-k"] = selections * unit.select_ps(tokens, k)
        scored_ps = max(busy.values())
        self.meter.add_bytes(memory, codes, self.machine.memories[memory].pj_per_byte)
        active_w = unit.config.active_power_w - unit.config.idle_power_w
        self.meter.add_power(card, unit.count * busy[card], active_w)
        if codes > cached:
            streamed = self.machine.transfer(tier, memory, codes - cached)
            self._count_transfer(tier, codes - cached, memory)
            busy.update(streamed.busy_ps)
            scored_ps = max(scored_ps, streamed.time_ps)
        rows = max(1, int(kv * self.select_fraction))
        fetched = self.machine.transfer(tier, self._home, rows)
        self._count_transfer(tier, rows)
        busy.update(fetched.busy_ps)
        attended = self._in_place(self.attender, rows)
        busy.update(attended.busy_ps)
        # What is selected is known after scoring: the fetch cannot start before.
        return Timing(scored_ps + max(fetched.time_ps, attended.time_ps), kv, dict(busy))

    def _flops(self, kv: int) -> int:
        """Two products per stored value and query head of its group, a multiply-add each."""
        values = kv // self.shape.bytes_per_value
        return 2 * values * (self.shape.query_heads // self.shape.kv_heads)

    def _count_transfer(self, source: str, nbytes: int, target: str = "") -> None:
        for stage in self.machine.stages(source, target or self._home):
            self.meter.add_bytes(stage.name, nbytes, stage.pj_per_byte)

    def _tier_pj(self, name: str) -> float:
        unit = self.machine.unit(name)
        if self.machine.in_memory(name) and isinstance(unit, NearMemoryUnit):
            return unit.config.pj_per_byte
        return self.machine.memories[self.machine.tier_of(name)].pj_per_byte

    @property
    def _home(self) -> str:
        return self.machine.tier_of(self.attender)
