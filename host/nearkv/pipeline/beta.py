"""Load balance between the hot pool and the scoring card: the ratio β of the bytes they hold.

Formula (HillInfer, arXiv 2602.18750): scoring and fetching take equally long on both sides,
    Mc/fc + α·Mc/Bc = Ms/fs + α·Ms/Bs   ⇒   β = Mc/Ms = Bc·fc·(Bs + α·fs) / (Bs·fs·(Bc + α·fc)),
with Mc, Ms bytes in the hot and the cold pool, fc, fs their scoring rates, Bc, Bs the rates of their links to
the GPU, and α the share that is selected, `select_fraction` here.

That balances a step in which a pool is scored and then fetched. Where scoring one layer overlaps with
fetching another, the busier part of each side counts instead, and the balance is
    max(1/fc, α/Bc)·Mc = max(1/fs, α/Bs)·Ms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

# Seed article on HillInfer, "correction in deployment": empirical, without a derivation.
SKEW_COEFFICIENT = 0.15
THEORY_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True)
class PoolRates:
    """Rates in bytes of KV cache (keys and values) per second, whatever the formats that are scored.

    Attributes:
        hot_score_bytes_per_s: fc, of the CPU.
        cold_score_bytes_per_s: fs, of the card.
        hot_link_bytes_per_s: Bc, from the hot pool to the GPU.
        cold_link_bytes_per_s: Bs, from the cold pool to the GPU.

    ValueError for a rate that is not finite and above 0.

    """

    hot_score_bytes_per_s: float
    cold_score_bytes_per_s: float
    hot_link_bytes_per_s: float
    cold_link_bytes_per_s: float

    def __post_init__(self) -> None:
        """Check every rate."""
        for field in fields(self):
            rate = getattr(self, field.name)
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"{field.name} is {rate!r}; allowed: a finite number above 0")


def require_fraction(name: str, value: float) -> None:
    """ValueError unless the value is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}; allowed: above 0, to 1")


def balanced_ratio(rates: PoolRates, select_fraction: float) -> float:
    """β: bytes in the hot pool per byte in the cold pool.

    Raises:
        ValueError: a select_fraction not above 0 and at most 1.

    """
    require_fraction("select_fraction", select_fraction)
    hot, cold = rates.hot_score_bytes_per_s, rates.cold_score_bytes_per_s
    hot_link, cold_link = rates.hot_link_bytes_per_s, rates.cold_link_bytes_per_s
    cold_side = hot_link * hot * (cold_link + select_fraction * cold)
    hot_side = cold_link * cold * (hot_link + select_fraction * hot)
    return cold_side / hot_side


def overlapped_ratio(rates: PoolRates, select_fraction: float) -> float:
    """Ratio of the pools at which the busiest parts of both sides are busy for equally long.

    Raises:
        ValueError: a select_fraction not above 0 and at most 1.

    """
    require_fraction("select_fraction", select_fraction)
    hot = max(1 / rates.hot_score_bytes_per_s, select_fraction / rates.hot_link_bytes_per_s)
    cold = max(1 / rates.cold_score_bytes_per_s, select_fraction / rates.cold_link_bytes_per_s)
    return cold / hot


def skew_corrected_ratio(
    ratio: float, actual_fraction: float, theory_fraction: float = THEORY_FRACTION
) -> float:
    """β·(1 + 0.15·(α_actual − α_theory)/α_theory), the first article's correction for skewed data.

    Raises:
        ValueError: a fraction not above 0 and at most 1, or a ratio that is not above 0.

    """
    require_fraction("actual_fraction", actual_fraction)
    require_fraction("theory_fraction", theory_fraction)
    if not ratio > 0:
        raise ValueError(f"ratio is {ratio!r}; allowed: above 0")
    return ratio * (1 + SKEW_COEFFICIENT * (actual_fraction - theory_fraction) / theory_fraction)


def hot_bytes(kv_bytes: int, ratio: float, capacity_bytes: int) -> int:
    """Bytes that belong into the hot pool at β = `ratio`, at most what it holds.

    Raises:
        ValueError: negative bytes or a ratio below 0.

    """
    if kv_bytes < 0 or capacity_bytes < 0:
        raise ValueError(f"kv_bytes is {kv_bytes} and capacity_bytes {capacity_bytes}; allowed: from 0")
    if not ratio >= 0:
        raise ValueError(f"ratio is {ratio!r}; allowed: from 0")
    share = 1.0 if math.isinf(ratio) else ratio / (1 + ratio)
    return min(round(kv_bytes * share), capacity_bytes)
