"""What scores a job inside a simulated card, and the engine of golden arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.key_block import join_planes
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.golden.scorer_timing import job_cycles

Int64 = NDArray[np.int64]
DEFAULT_CACHE_BYTES = 512 << 20


class EngineStalled(RuntimeError):
    """The engine will never finish this job."""


class ScoreOverflow(ArithmeticError):
    """A score of the job does not fit its format."""


@dataclass(frozen=True)
class ScoringJob:
    """A checked job: everything the scorer is fed with, for all blocks in order.

    Attributes:
        head_dim: channels of every key.
        planes: per block uint8, its streamed bytes: both planes, or in INT4 the high one.
        sources: per block (device address, generation): equal pairs mean equal contents.
        key_formats: per block.
        first_tokens: int64 [blocks].
        query_codes: int16 [blocks, heads, head_dim]; at most the design's query group of heads.
        shift: int64 [blocks, heads].
        bias: int64 [blocks, heads].

    """

    head_dim: int
    planes: tuple[NDArray[np.uint8], ...]
    sources: tuple[tuple[int, int], ...]
    key_formats: tuple[KeyFormat, ...]
    first_tokens: Int64
    query_codes: NDArray[np.int16]
    shift: Int64
    bias: Int64


@dataclass(frozen=True)
class EngineResult:
    """Scores int32 [blocks · block_tokens, heads], and clock cycles up to the last one."""

    scores: NDArray[np.int32]
    cycles: int


class Engine(Protocol):
    """Scores jobs one after the other; EngineStalled or ScoreOverflow when it cannot."""

    def run(self, job: ScoringJob) -> EngineResult:
        """Score all blocks of a job, back to back."""
        ...


class GoldenEngine:
    """Golden arithmetic, with cycles from the timing formula.

    Decoded blocks are kept as floats by address, and decoded again when their memory was written since.

    Args:
        design: the build to imitate.
        cache_bytes: room for decoded blocks of one head_dim; when it is full, all are forgotten.

    """

    def __init__(self, design: DesignConfig, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes is {cache_bytes}; allowed: from 0")
        self._design = design
        self._model = ScorerModel(design)
        self._caches = {
            head_dim: _DecodedBlocks(design, head_dim, self._model.exact_dtype(head_dim), cache_bytes)
            for head_dim in design.head_dims
        }

    def run(self, job: ScoringJob) -> EngineResult:
        """Score a job; see `Engine`."""
        codes = self._caches[job.head_dim].codes(job)
        try:
            scores = self._model.score(codes, job.query_codes, job.shift, job.bias)
        except ValueError as error:
            # A job's operands are checked, so that only the result can be out of range.
            raise ScoreOverflow(str(error)) from error
        blocks = len(job.planes)
        cycles = job_cycles(self._design, [job.head_dim] * blocks, job.key_formats)
        return EngineResult(scores, cycles)


class _DecodedBlocks:
    """Float codes of key blocks of one head_dim, kept in one array so that neighbours need no copy."""

    def __init__(self, design: DesignConfig, head_dim: int, dtype: type[Any], cache_bytes: int) -> None:
        self._layout = design.layout(head_dim)
        self._shape = (design.block_tokens, head_dim)
        self._dtype = dtype
        self._max_blocks = cache_bytes // (design.block_tokens * head_dim * np.dtype(dtype).itemsize)
        self._codes = np.empty((0, *self._shape), dtype)
        self._slots: dict[tuple[int, KeyFormat], int] = {}
        self._generations: list[int] = []  # by slot

    def codes(self, job: ScoringJob) -> NDArray[Any]:
        """Codes of the job's blocks, float [blocks, block_tokens, head_dim]; not to be written."""
        blocks = len(job.planes)
        if blocks > self._max_blocks:
            return self._decode(job, range(blocks))
        keys = [
            (address, key_format)
            for (address, _), key_format in zip(job.sources, job.key_formats, strict=True)
        ]
        new = dict.fromkeys(key for key in keys if key not in self._slots)
        if len(self._slots) + len(new) > self._max_blocks:
            self._slots.clear()
            self._generations.clear()
            new = dict.fromkeys(keys)
        for key in new:
            self._slots[key] = len(self._slots)
            self._generations.append(0)
        self._reserve(len(self._slots))
        slots = [self._slots[key] for key in keys]
        stale = {
            slot: block
            for block, slot in enumerate(slots)
            if self._generations[slot] != job.sources[block][1]
        }
        if stale:
            self._codes[list(stale)] = self._decode(job, stale.values())
            for slot, block in stale.items():
                self._generations[slot] = job.sources[block][1]
        first = slots[0]
        if slots == list(range(first, first + blocks)):
            return self._codes[first : first + blocks]
        return self._codes[slots]

    def _reserve(self, blocks: int) -> None:
        if blocks > len(self._codes):
            grown = np.empty((min(2 * blocks, self._max_blocks), *self._shape), self._dtype)
            grown[: len(self._codes)] = self._codes
            self._codes = grown

    def _decode(self, job: ScoringJob, blocks: Any) -> NDArray[Any]:
        blocks = list(blocks)
        codes = np.empty((len(blocks), *self._shape), self._dtype)
        for key_format in KeyFormat:
            mine = [place for place, block in enumerate(blocks) if job.key_formats[block] is key_format]
            if mine:
                planes = np.stack([job.planes[blocks[place]] for place in mine])
                size = self._layout.plane_bytes
                low = planes[:, size:] if key_format is KeyFormat.INT8 else None
                codes[mine] = join_planes(planes[:, :size], low, self._layout)
        return codes
