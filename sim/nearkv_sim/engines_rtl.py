"""The engine of compiled RTL."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, Stalls, pack_words
from nearkv_sim.engines import EngineResult, EngineStalled, ScoreOverflow, ScoringJob
from nearkv_sim.scorer_job import read_scores


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
        inputs = {
            "i_block": self._command_words(job),
            "i_query": self._query_words(job),
            "i_keys": self._key_words(job),
        }
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

    def _command_words(self, job: ScoringJob) -> NDArray[np.uint32]:
        blocks = len(job.planes)
        return pack_words(
            command_layout(self._design),
            first_token=job.first_tokens,
            head_dim_index=self._design.head_dims.index(job.head_dim),
            key_format=np.array(job.key_formats, np.int64),
            shift=self._pad_heads(job.shift),
            bias=self._pad_heads(job.bias),
            last=_marks(blocks, [blocks]),
        )

    def _query_words(self, job: ScoringJob) -> NDArray[np.uint32]:
        """Head by head, `lanes` codes a beat; heads that the job leaves free score zeros."""
        rows = self._pad_heads(job.query_codes).reshape(-1, self._design.lanes)
        ends = np.arange(1, len(job.planes) + 1) * self._design.query_beats(job.head_dim)
        return pack_words(query_layout(self._design), data=rows, last=_marks(len(rows), ends))

    def _key_words(self, job: ScoringJob) -> NDArray[np.uint32]:
        beats = np.concatenate(job.planes).reshape(-1, self._design.bus_bytes)
        ends = np.cumsum([len(planes) for planes in job.planes]) // self._design.bus_bytes
        return pack_words(key_layout(self._design), data=beats, last=_marks(len(beats), ends))

    def _pad_heads(self, values: NDArray[Any]) -> NDArray[Any]:
        """Zeros behind axis 1, up to the query group."""
        free = self._design.query_group - values.shape[1]
        return np.pad(values, [(0, 0), (0, free)] + [(0, 0)] * (values.ndim - 2))


def _marks(beats: int, ends: ArrayLike) -> NDArray[np.uint8]:
    """`last` flags: 1 on the beat before each end."""
    marks = np.zeros(beats, np.uint8)
    marks[np.asarray(ends) - 1] = 1
    return marks
