"""The engine of compiled RTL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, Stalls
from nearkv_sim.engines import EngineResult, EngineStalled, ScoreOverflow, ScoringJob
from nearkv_sim.scorer_job import read_scores, stream_words


class RtlEngine:
    """The compiled `Scorer`, fed by sources of full rate into a sink that is always ready.

    The same scores as `GoldenEngine`, and without stalls the same cycles.

    Args:
        design: the build; compiled at its first use, then taken from the cache.
        stalls: pauses of sources and sink; None for full rate.

    Raises:
        CosimBuildError, OSError: no library could be made.

    """

    def __init__(self, design: DesignConfig, stalls: Stalls | None = None) -> None:
        self._design = design
        self._stalls = stalls
        self._scorer = CompiledComponent(Scorer(design), name=design.name)

    def run(self, job: ScoringJob) -> EngineResult:
        """Score a job; see `Engine`."""
        blocks = len(job.planes)
        tokens = blocks * self._design.block_tokens
        # Heads that the job leaves free score zeros.
        inputs = stream_words(
            self._design,
            head_dims=[job.head_dim] * blocks,
            key_formats=job.key_formats,
            first_tokens=job.first_tokens,
            planes=job.planes,
            query_codes=tuple(self._pad_heads(job.query_codes)),
            shift=self._pad_heads(job.shift),
            bias=self._pad_heads(job.bias),
        )
        try:
            result = self._scorer.run(inputs, {"o_scores": tokens}, stalls=self._stalls)
        except CosimDeadlock as error:
            raise EngineStalled(str(error)) from error
        if result.flags["o_framing_error"].high_cycles:
            raise RuntimeError(f"scorer of design {self._design.name} found a `last` in the wrong place")
        if result.flags["o_overflow"].high_cycles:
            self._scorer.reset()  # the flag is sticky
            raise ScoreOverflow(f"a score of a job of {blocks} blocks does not fit 32 bits")
        found, scores, _ = read_scores(self._design, result.outputs["o_scores"])
        expected = job.first_tokens[:, None] + np.arange(self._design.block_tokens)
        if not np.array_equal(found, expected.reshape(-1)):
            raise RuntimeError(f"scorer of design {self._design.name} returned tokens out of order")
        return EngineResult(scores[:, : job.query_codes.shape[1]], result.cycles)

    def _pad_heads(self, values: NDArray[Any]) -> NDArray[Any]:
        """Zeros behind axis 1, up to the query group."""
        free = self._design.query_group - values.shape[1]
        return np.pad(values, [(0, 0), (0, free)] + [(0, 0)] * (values.ndim - 2))
