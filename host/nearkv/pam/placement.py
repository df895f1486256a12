"""Which PIM tier holds which token: Algorithm 2 with a guard, room per tier, and classes of heat.

Tiers are 0 (HBM), 1 (DDR) and 2 (SSD). Algorithm 2 of PAM (arXiv 2602.11521), with IS the mean importance of
a tier's tokens and x* = IS_H/IS_S, y* = IS_D/IS_S:

    while x* + y* < x + y:   swap the least important token of DDR with the most important of SSD
    while x*/y* < x/y:       swap the least important token of HBM with the most important of DDR

As printed it need not end: once every token of the upper tier is more important than any of the lower one, a
swap makes the ratio worse and the next one undoes it. Here a loop also ends at the first swap that does not
improve, of which there is one after at most as many swaps as the smaller tier has tokens: swaps in order of
importance pair ever more important tokens of the upper tier with ever less important ones of the lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.importance import Heat

Float64 = NDArray[np.float64]
TierIndex = NDArray[np.int8]
TokenIndex = NDArray[np.int64]

HBM, DDR, SSD = 0, 1, 2
TIERS = 3


@dataclass(frozen=True)
class ImportanceRatio:
    """x : y : 1, the ratio of mean importance of HBM, DDR and SSD that Algorithm 2 keeps.

    The paper publishes no values. ValueError for a number that is not above 0.
    """

    hbm: float
    ddr: float

    def __post_init__(self) -> None:
        """Check both."""
        for name in ("hbm", "ddr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: a finite number above 0")


def rebalance(importance: Float64, tier: TierIndex, ratio: ImportanceRatio) -> TierIndex:
    """Algorithm 2: the tiers after its swaps. Tokens per tier stay as they are; an empty tier is left alone.

    Args:
        importance: of every token, [n], from 0.
        tier: of every token, [n].
        ratio: x and y.

    Raises:
        ValueError: arrays that do not match, a negative or non-finite importance, an unknown tier.

    """
    _check(importance, tier)
    result = tier.copy()
    counts = np.bincount(tier, minlength=TIERS)
    sums: Float64 = np.bincount(tier, weights=importance, minlength=TIERS).astype(np.float64)
    if not counts.all():
        return result
    # Compared without a division, since IS_S may be 0: (IS_H + IS_D) < (x + y)·IS_S.
    gain = _swap_gains(importance, result, DDR, SSD)
    below = sums[HBM] / counts[HBM] + (sums[DDR] + gain) / counts[DDR]
    wanted = (ratio.hbm + ratio.ddr) * (sums[SSD] - gain) / counts[SSD]
    sums += _swap(importance, result, DDR, SSD, gain, below < wanted)
    gain = _swap_gains(importance, result, HBM, DDR)
    below = ratio.ddr * (sums[HBM] + gain) / counts[HBM]
    wanted = ratio.hbm * (sums[DDR] - gain) / counts[DDR]
    _swap(importance, result, HBM, DDR, gain, below < wanted)
    return result


def fit(importance: Float64, tier: TierIndex, room_tokens: Sequence[int]) -> TierIndex:
    """Push what a tier has no room for one tier down, the least important first, the older among equals.

    Args:
        importance: of every token, [n].
        tier: of every token, [n].
        room_tokens: of each tier.

    Raises:
        ValueError: as `rebalance`; also where all tiers together have too little room.

    """
    _check(importance, tier)
    if len(room_tokens) != TIERS or sum(room_tokens) < len(tier) or min(room_tokens) < 0:
        raise ValueError(f"room_tokens is {tuple(room_tokens)}; allowed: three from 0, {len(tier)} in all")
    result = tier.copy()
    for here in (HBM, DDR):
        _move(
            result,
            _extreme(importance, result, here, _excess(result, here, room_tokens), least=True),
            here + 1,
        )
    # What the lowest tier cannot hold goes up again: the most important of it.
    for here in (SSD, DDR):
        _move(
            result,
            _extreme(importance, result, here, _excess(result, here, room_tokens), least=False),
            here - 1,
        )
    return result


def fill_up(importance: Float64, tier: TierIndex, room_tokens: Sequence[int]) -> TierIndex:
    """`fit`, and then raise the most important tokens into room that is left, HBM first."""
    result = fit(importance, tier, room_tokens)
    for here in (HBM, DDR):
        left = room_tokens[here] - int(np.count_nonzero(result == here))
        for below in range(here + 1, TIERS):
            count = min(left, int(np.count_nonzero(result == below)))
            _move(result, _extreme(importance, result, below, count, least=False), here)
            left -= count
    return result


def place_by_heat(
    importance: Float64, heat: NDArray[np.int8], tier: TierIndex, room_tokens: Sequence[int]
) -> TierIndex:
    """The article's classes: hot to HBM, warm to DDR, cold to SSD, as far as there is room.

    Raises:
        ValueError: as `fit`, or a heat of another shape.

    """
    if heat.shape != tier.shape:
        raise ValueError(f"heat has shape {heat.shape}; allowed: {tier.shape}")
    wanted = np.zeros_like(tier)
    wanted[heat == Heat.WARM] = DDR
    wanted[heat == Heat.COLD] = SSD
    return fit(importance, wanted, room_tokens)


def _swap_gains(importance: Float64, tier: TierIndex, upper: int, lower: int) -> Float64:
    """What the upper tier's sum gains by 0, 1, 2 … swaps in order, up to the first that gains nothing."""
    ups = np.sort(importance[tier == upper])
    downs = -np.sort(-importance[tier == lower])
    count = min(len(ups), len(downs))
    steps = downs[:count] - ups[:count]  # falling: what gains comes before what does not
    return np.concatenate(([0.0], np.cumsum(steps[steps > 0])))


def _swap(
    importance: Float64, tier: TierIndex, upper: int, lower: int, gain: Float64, goes_on: NDArray[np.bool_]
) -> Float64:
    """Swap until the loop's condition fails or nothing is gained; returns the change of each tier's sum."""
    stops = np.flatnonzero(~goes_on)
    count = int(stops[0]) if len(stops) else len(gain) - 1
    rising = _extreme(importance, tier, lower, count, least=False)
    falling = _extreme(importance, tier, upper, count, least=True)
    tier[rising], tier[falling] = upper, lower
    change = np.zeros(TIERS)
    change[upper], change[lower] = gain[count], -gain[count]
    return change


def _extreme(importance: Float64, tier: TierIndex, here: int, count: int, *, least: bool) -> TokenIndex:
    """The `count` least or most important tokens of a tier; among equals old ones fall, new ones rise."""
    tokens = np.flatnonzero(tier == here)
    order = np.argsort(importance[tokens], kind="stable")
    return tokens[order[:count]] if least else tokens[order[len(order) - count :]]


def _excess(tier: TierIndex, here: int, room_tokens: Sequence[int]) -> int:
    return max(0, int(np.count_nonzero(tier == here)) - room_tokens[here])


def _move(tier: TierIndex, tokens: TokenIndex, target: int) -> None:
    tier[tokens] = target


def _check(importance: Float64, tier: TierIndex) -> None:
    if importance.ndim != 1 or importance.shape != tier.shape:
        raise ValueError(f"tier has shape {tier.shape}, importance {importance.shape}; allowed: both [n]")
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise ValueError("importance holds a negative or non-finite number; allowed: finite, from 0")
    if len(tier) and not (tier.min() >= 0 and tier.max() < TIERS):
        raise ValueError(f"tier holds {tier.min()} to {tier.max()}; allowed: 0 to {TIERS - 1}")


def filled(rooms: Sequence[int], amount: int, what: str = "of the KV cache") -> list[int]:
    """An amount over rooms in order, the first full before the next is used; ValueError if some is left."""
    shares = []
    for room in rooms:
        shares.append(min(room, amount))
        amount -= shares[-1]
    if amount:
        raise ValueError(f"{amount} {what} have no place; allowed: what the tiers hold")
    return shares
