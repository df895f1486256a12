"""The controller that moves β and select_fraction with the rates it measures.

Rates are exponential means over steps. Both controls have a dead band, so that noise moves nothing, and a
limit per step, so that a change of pools is migrated in the background instead of stopping a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from nearkv.pipeline.beta import (
    PoolRates,
    balanced_ratio,
    hot_bytes,
    overlapped_ratio,
    require_fraction,
    skew_corrected_ratio,
)
from nearkv.pipeline.decode import DecodeRun
from nearkv.pipeline.settings import PipelineSettings
from nearkv.pipeline.work import StepLoad


class BalanceRule(Enum):
    """What the pools are balanced for."""

    OVERLAPPED = "overlapped"  # the busiest part of each side
    SERIAL = "serial"  # scoring and then fetching, as HillInfer's formula has it


@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """How the controller behaves.

    Attributes:
        hot_capacity_bytes: what the hot pool can hold.
        rule: see `BalanceRule`.
        skew_correction: apply the first article's empirical factor to β, with the measured share of selected
            rows; off unless it is asked for.
        select_range: least and largest select_fraction; equal values keep it fixed.
        mean_weight: weight of the newest step in the mean of the rates, above 0, to 1.
        dead_band: relative change below which nothing moves, from 0.
        moved_bytes_per_step: most that changes pools in one step.

    ValueError for a value out of range.

    """

    hot_capacity_bytes: int
    rule: BalanceRule = BalanceRule.OVERLAPPED
    skew_correction: bool = False
    select_range: tuple[float, float] = (0.10, 0.10)
    mean_weight: float = 0.5
    dead_band: float = 0.02
    moved_bytes_per_step: int = 1 << 30

    def __post_init__(self) -> None:
        """Check every value."""
        least, most = self.select_range
        require_fraction("select_range", least)
        require_fraction("select_range", most)
        require_fraction("mean_weight", self.mean_weight)
        if least > most:
            raise ValueError(f"select_range is {self.select_range}; allowed: least first")
        if not 0 <= self.dead_band < 1:
            raise ValueError(f"dead_band is {self.dead_band!r}; allowed: 0 to below 1")
        for name in ("hot_capacity_bytes", "moved_bytes_per_step"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 1")


class BalanceController:
    """Turns the steps that ran into the load and settings of the next one.

    Attributes:
        settings: how it behaves.
        rates: means so far; None before the first step.

    """

    def __init__(self, settings: AdaptSettings) -> None:
        """Nothing has been measured."""
        self.settings = settings
        self.rates: PoolRates | None = None

    def observe(self, run: DecodeRun) -> tuple[StepLoad, PipelineSettings]:
        """Learn from a step; returns what the next one should have."""
        self.rates = self._mean(run.rates())
        pipeline = replace(run.settings, select_fraction=self._select_fraction(run))
        return self._moved(run, pipeline.select_fraction), pipeline

    def ratio(self, run: DecodeRun, select_fraction: float) -> float:
        """β for the mean of the rates; ValueError before the first step."""
        if self.rates is None:
            raise ValueError("no step has been observed; allowed: observe first")
        balance = balanced_ratio if self.settings.rule is BalanceRule.SERIAL else overlapped_ratio
        ratio = balance(self.rates, select_fraction)
        if self.settings.skew_correction:
            kv_bytes = run.layers * (run.work.hot_kv + run.work.cold_kv)
            ratio = skew_corrected_ratio(ratio, run.fetched_bytes / kv_bytes)
        return ratio

    def _mean(self, newest: PoolRates) -> PoolRates:
        if self.rates is None:
            return newest
        weight, before = self.settings.mean_weight, vars(self.rates)
        # Times per byte add up, rates do not: the mean is that of times.
        mean = {
            name: 1 / (weight / rate + (1 - weight) / before[name]) for name, rate in vars(newest).items()
        }
        return PoolRates(**mean)

    def _moved(self, run: DecodeRun, select_fraction: float) -> StepLoad:
        load, kv_bytes = run.load, run.layers * (run.work.hot_kv + run.work.cold_kv)
        wanted = hot_bytes(kv_bytes, self.ratio(run, select_fraction), self.settings.hot_capacity_bytes)
        change = wanted - load.hot_bytes
        # Relative to the smaller pool: there a few bytes are a large part of its work.
        smaller = max(1, min(load.hot_bytes, kv_bytes - load.hot_bytes))
        if abs(change) <= self.settings.dead_band * smaller:
            change = 0
        most = self.settings.moved_bytes_per_step
        change = max(-most, min(change, most))
        return replace(
            load,
            hot_bytes=load.hot_bytes + change,
            promoted_bytes=max(0, change),
            demoted_bytes=max(0, -change),
        )

    def _select_fraction(self, run: DecodeRun) -> float:
        """As much as fetching can be hidden behind the busiest part that does not fetch."""
        least, most = self.settings.select_range
        now = run.settings.select_fraction
        fetch_ps = max(
            run.duration_ps("fetch_hot"), run.duration_ps("fetch_cold") + run.duration_ps("fetch_late")
        )
        others = ("score_hot", "score_cold", "stream_codes")
        gpu_ps = sum(map(run.duration_ps, ("query", "predict", "attend", "rest", "output")))
        hidden_ps = max(gpu_ps, *map(run.duration_ps, others))
        if not fetch_ps:
            return max(least, min(now, most))
        wanted = now * hidden_ps / fetch_ps
        if abs(wanted - now) <= self.settings.dead_band * now:
            wanted = now
        return max(least, min(wanted, most))
