"""What a published figure is, and what became of it here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv.trace.format import AttentionTrace, read_trace
from nearkv.trace.summary import attention_mass

Float32 = NDArray[np.float32]
Mask = NDArray[np.bool_]

HILLINFER = "HillInfer (arXiv 2602.18750)"
PAM = "PAM (arXiv 2602.11521)"


class Verdict(Enum):
    """What became of a figure."""

    HOLDS = "holds"
    PARTLY = "partly"  # for some of what it speaks of, or with a condition that the note names
    DIFFERS = "differs"
    UNMEASURED = "not measured"  # the note says why


@dataclass(frozen=True)
class Finding:
    """Ours beside theirs; `note` explains a difference or says under which condition ours holds."""

    ours: str
    verdict: Verdict
    note: str


def unmeasured(reason: str) -> Callable[[ClaimInputs], Finding]:
    """Measure of a figure that cannot be measured yet."""
    return lambda _inputs: Finding("–", Verdict.UNMEASURED, reason)


class ClaimInputs:
    """What measures may need beside the models: the attention of a real model.

    Args:
        path: an attention trace; None leaves figures about real attention unmeasured.

    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._top: dict[float, tuple[Mask, ...]] = {}

    @property
    def trace_path(self) -> Path:
        """The trace's file; only to be asked for where there is one."""
        if self.path is None:
            raise AssertionError("a claim that needs a trace was measured without one")
        return self.path

    @cached_property
    def trace(self) -> AttentionTrace:
        """The trace, read once; ValueError for a bad file, OSError for a missing one."""
        return read_trace(self.trace_path)

    @cached_property
    def weights(self) -> tuple[Float32, ...]:
        """Attention of every stream, float32 [steps, tokens], mean over the query heads of the group."""
        first = self.trace.first_query_position
        return tuple(attention_mass(stream, first).mean(axis=0) for stream in self.trace.streams)

    def top(self, share: float) -> tuple[Mask, ...]:
        """Per stream the ⌈share · context⌉ tokens of most attention in every step, bool [steps, tokens]."""
        if share not in self._top:
            self._top[share] = tuple(self._top_of(weights, share) for weights in self.weights)
        return self._top[share]

    def _top_of(self, weights: Float32, share: float) -> Mask:
        chosen = np.zeros(weights.shape, np.bool_)
        for step, row in enumerate(weights):
            count = math.ceil(share * (self.trace.first_query_position + step + 1))
            chosen[step, np.argpartition(-row, count - 1)[:count]] = True
        return chosen


@dataclass(frozen=True)
class PublishedClaim:
    """A figure of an article.

    Attributes:
        name: unique, with a slash behind the article: "hillinfer/kv_16_gb".
        source: who says so; an article's figure that its paper does not have is named as the article's.
        statement: what is said, in our words.
        theirs: the figure.
        command: how to measure ours again.
        measure: returns ours.
        needs_trace: it asks `ClaimInputs.trace`.

    """

    name: str
    source: str
    statement: str
    theirs: str
    command: str
    measure: Callable[[ClaimInputs], Finding]
    needs_trace: bool = False


def record(claim: PublishedClaim, inputs: ClaimInputs) -> dict[str, Any]:
    """A claim with ours, as plain data."""
    if claim.needs_trace and inputs.path is None:
        finding = Finding("–", Verdict.UNMEASURED, "needs an attention trace: give one with --trace")
    else:
        finding = claim.measure(inputs)
    return {
        "name": claim.name,
        "source": claim.source,
        "statement": claim.statement,
        "theirs": claim.theirs,
        "ours": finding.ours,
        "verdict": finding.verdict.value,
        "note": finding.note,
        "command": claim.command,
    }
