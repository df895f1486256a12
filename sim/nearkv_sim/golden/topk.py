"""Golden model of the top-k unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.spec.topk_config import TopKConfig

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class TopKResult:
    """What a job yields; the fields of the status stream, then what its timing depends on.

    Args:
        tokens, scores: the selection in ascending order of tokens.
        positions: where it stood in the frame.
        threshold: no selected score lies below it, no other above; None without a selection.
        memory_passes: passes over the score memory before the one that emits.
        window_hit: the k-th score was in an inner bucket of the window.
        clipped: k was above the number of scores.
        overrun: more scores than capacity: refused.
        unordered: tokens in the wrong order: refused.
        pass_rows: rows of every pass before the one that emits.

    """

    tokens: Integers
    scores: Integers
    positions: Integers
    threshold: int | None
    memory_passes: int
    window_hit: bool
    clipped: bool
    overrun: bool
    unordered: bool
    pass_rows: tuple[int, ...]

    @property
    def count(self) -> int:
        """Items of the selection."""
        return len(self.positions)


@dataclass(frozen=True)
class _Bucket:
    """The bucket of the k-th score: how many of it are wanted, and whether that is all it holds."""

    digit: int
    need: int
    whole: bool


def _find(digits: Integers, buckets: int, need: int) -> _Bucket:
    counts = np.bincount(digits, minlength=buckets)
    at_or_above = counts[::-1].cumsum()[::-1]
    digit = int(np.flatnonzero(at_or_above >= need)[-1])
    wanted = need - int(at_or_above[digit] - counts[digit])
    return _Bucket(digit, wanted, wanted == counts[digit])


@dataclass(frozen=True)
class _Search:
    threshold: int
    window_hit: bool
    memory_passes: int
    pass_rows: tuple[int, ...]


class TopKModel:
    """Selections of whole frames, bit-exact with `nearkv_hdl.attention.topk.TopK`, status included.

    The selection comes from numpy's partition; the histograms only give what the status tells of the
    search: they share no arithmetic, so that each checks the other.

    Args:
        config: capacity, lanes, digits, token runs.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config

    def select(
        self,
        tokens: NDArray[Any],
        scores: NDArray[Any],
        k: int,
        *,
        window_base: int | None = None,
        window_shift: int | None = None,
    ) -> TopKResult:
        """Select the k highest scores, ties to the lower token.

        Args:
            tokens: integers [N]; what the unit refuses is refused here too.
            scores: integers [N].
            k: 0 and above.
            window_base, window_shift: the job's window; the whole range by default.

        Raises ValueError for arrays of another shape, a token, score, k or window outside its format.

        """
        config = self.config
        base = config.score.min if window_base is None else window_base
        shift = config.residual_bits if window_shift is None else window_shift
        tokens, scores = self._checked(tokens, scores, k, base, shift)
        n = len(scores)
        overrun = n > config.capacity
        unordered = self._unordered(tokens[: config.capacity])
        positions = np.zeros(0, np.int64)
        search = None
        if k and n and not overrun and not unordered:
            positions = k_highest(scores, k)
            search = self._search(scores, min(k, n), base, shift)
        return TopKResult(
            tokens=tokens[positions],
            scores=scores[positions],
            positions=positions,
            threshold=search.threshold if search else None,
            memory_passes=search.memory_passes if search else 0,
            window_hit=bool(search and search.window_hit),
            # The unit counts up to its capacity.
            clipped=k > min(n, config.capacity),
            overrun=overrun,
            unordered=unordered,
            pass_rows=search.pass_rows if search else (),
        )

    def _checked(
        self, tokens: NDArray[Any], scores: NDArray[Any], k: int, base: int, shift: int
    ) -> tuple[Integers, Integers]:
        config = self.config
        if tokens.shape != scores.shape or scores.ndim != 1:
            raise ValueError(f"tokens {tokens.shape} and scores {scores.shape}; allowed: both [N]")
        limits = {
            "token": (tokens, 0, (1 << config.token_bits) - 1),
            "score": (scores, config.score.min, config.score.max),
            "k": (np.array([k]), 0, (1 << 32) - 1),
            "window_base": (np.array([base]), config.score.min, config.score.max),
            "window_shift": (np.array([shift]), 0, (1 << config.shift_bits) - 1),
        }
        for name, (values, low, high) in limits.items():
            if values.size and not (low <= values.min() and values.max() <= high):
                raise ValueError(f"{name} is {values.min()} to {values.max()}; allowed: {low} to {high}")
        return tokens.astype(np.int64), scores.astype(np.int64)

    def _unordered(self, tokens: Integers) -> bool:
        steps = np.diff(tokens)
        inside_run = np.arange(1, len(tokens)) % self.config.token_run != 0
        return bool((steps <= 0).any() or (steps[inside_run] != 1).any())

    def _search(self, scores: Integers, k: int, base: int, shift: int) -> _Search:
        config = self.config
        rest = config.residual_bits
        window = np.clip((scores - base) >> shift, 0, config.buckets - 1)
        bucket = _find(window, config.buckets, k)
        hit = shift <= rest and 0 < bucket.digit < config.buckets - 1
        if hit:
            low, undecided = base + (bucket.digit << shift), shift
        else:
            bucket = _find((scores - config.score.min) >> rest, config.buckets, k)
            low, undecided = config.score.min + (bucket.digit << rest), rest
        lanes = np.arange(len(scores)) % config.lanes
        rows = -(-len(scores) // config.lanes)
        pass_rows: list[int] = []
        memory_passes, kept = 0, 0  # kept: scores of the first pass's interval in the fullest lane
        while undecided and not bucket.whole:
            inside = (scores >= low) & (scores < low + (1 << undecided))
            replay = 0 < kept <= config.candidate_rows
            pass_rows.append(kept if replay else rows)
            memory_passes += not replay
            kept = kept or int(np.bincount(lanes[inside]).max())
            undecided = config.digit_bits if undecided > config.digit_bits else 0
            bucket = _find((scores[inside] - low) >> undecided, config.buckets, bucket.need)
            low += bucket.digit << undecided
        return _Search(low, hit, memory_passes, tuple(pass_rows))


def k_highest(scores: NDArray[Any], k: int) -> Integers:
    """Positions of the k highest scores in ascending order, ties to the lower position; all if k >= N.

    Linear in N: the k-th score by partition, then everything above it and the first of its equals.
    """
    n = len(scores)
    if k >= n:
        return np.arange(n, dtype=np.int64)
    if k == 0:
        return np.zeros(0, np.int64)
    kth = np.partition(scores, n - k)[n - k]
    chosen = scores > kth
    ties = np.flatnonzero(scores == kth)
    chosen[ties[: k - int(chosen.sum())]] = True
    result: Integers = np.flatnonzero(chosen).astype(np.int64)
    return result
