"""Jobs of key blocks with prepared queries as arrays: what goes into FoldUnit and KeyScorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.key_block import BlockHeaders, KeyBlocks, quantise_keys
from nearkv.codec.query import (
    FIXED_POINT_BITS,
    PreparedQuery,
    fold_query,
    prepare_query,
)
from nearkv_hdl.attention.fold_config import fold_lanes, header_beats
from nearkv_hdl.attention.fold_headers import descriptor_layout, header_layout
from nearkv_hdl.attention.fold_queries import mantissa_layout, query_set_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, QUERY_MANTISSA
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.score_statistics import MIN_SCORE_FRACTION_BITS
from nearkv_sim.cosim.words import pack_words
from nearkv_sim.golden.fold import FoldModel, fold_units
from nearkv_sim.scorer_job import ScorerJob

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class FoldJob:
    """One query set and the key blocks that it scores.

    Attributes:
        query: prepared queries of query_group heads.
        unit: int64 [query_group], see `nearkv_sim.golden.fold.fold_units`.
        blocks: key blocks, of the query's head_dim.
        key_format: what is streamed of each block.
        first_token: token index of each block's first score, int64 [blocks].

    """

    query: PreparedQuery
    unit: NDArray[np.int64]
    blocks: KeyBlocks
    key_format: tuple[KeyFormat, ...]
    first_token: NDArray[np.int64]

    @property
    def score_fraction_bits(self) -> NDArray[np.int64]:
        """L of every head: a score's value is score · 2^-L, int64 [query_group]."""
        return np.asarray(FIXED_POINT_BITS + self.query.fraction_bits - self.unit, np.int64)

    def folded(self, design: DesignConfig) -> ScorerJob:
        """The same job for the scorer, folded by the golden model."""
        folded = FoldModel(design).fold(self.query.mantissa, self.unit, self.blocks.headers, self.key_format)
        codes = tuple(self.blocks.codes), tuple(folded.codes)
        return ScorerJob(self.key_format, self.first_token, *codes, folded.shift, folded.bias)


def fold_job(
    design: DesignConfig, query: PreparedQuery, blocks: KeyBlocks, key_format: tuple[KeyFormat, ...]
) -> FoldJob:
    """A job with the L that the host would choose, tokens counted from 0."""
    folded = fold_query(query, blocks.headers, key_format, design.query_code)
    first_token = np.arange(len(blocks)) * design.block_tokens
    return FoldJob(query, fold_units(query, folded.score_fraction_bits), blocks, key_format, first_token)


def channel_tables(headers: BlockHeaders) -> NDArray[np.uint8]:
    """Headers as stored: uint8 [blocks, channel_table_bytes], centre and scale as FP16, then mean codes."""
    tables = (headers.centre.astype("<f2"), headers.scale.astype("<f2"), headers.mean_code)
    return np.concatenate([np.ascontiguousarray(table).view(np.uint8) for table in tables], axis=1)


def fold_words(design: DesignConfig, jobs: Sequence[FoldJob]) -> dict[str, Words]:
    """Beats of `i_set`, `i_mantissas`, `i_block` and `i_headers` for jobs that follow each other."""
    parts: dict[str, list[Words]] = {"i_set": [], "i_mantissas": [], "i_block": [], "i_headers": []}
    for job in jobs:
        headers = job.blocks.headers
        head_dim_index = design.head_dims.index(headers.layout.head_dim)
        rows = job.query.mantissa.reshape(-1, fold_lanes(design))
        beats = header_beats(design, headers.layout.head_dim)
        tables = channel_tables(headers)
        padding = beats * design.bus_bytes - tables.shape[1]
        data = np.pad(tables, [(0, 0), (0, padding)]).reshape(-1, design.bus_bytes)
        parts["i_set"].append(
            pack_words(query_set_layout(design), head_dim_index=[head_dim_index], unit=job.unit[None])
        )
        parts["i_mantissas"].append(
            pack_words(mantissa_layout(design), data=rows, last=np.arange(len(rows)) == len(rows) - 1)
        )
        parts["i_block"].append(
            pack_words(
                descriptor_layout(),
                first_token=job.first_token,
                head_dim_index=np.full(len(headers), head_dim_index),
                key_format=np.array(job.key_format, np.int64),
                last=np.arange(len(headers)) == len(headers) - 1,
            )
        )
        parts["i_headers"].append(
            pack_words(header_layout(design), data=data, last=np.arange(len(data)) % beats == beats - 1)
        )
    return {name: np.concatenate(words) for name, words in parts.items()}


def scorer_words(design: DesignConfig, jobs: Sequence[FoldJob]) -> dict[str, Words]:
    """Beats of `i_block`, `i_query` and `i_keys` for Scorer, of the same jobs folded by the golden model."""
    words = [job.folded(design).input_words(design) for job in jobs]
    return {name: np.concatenate([part[name] for part in words]) for name in words[0]}


def random_fold_job(
    design: DesignConfig,
    blocks: int,
    rng: np.random.Generator,
    *,
    head_dim: int | None = None,
    key_formats: tuple[KeyFormat, ...] = (KeyFormat.INT8, KeyFormat.INT4),
    extreme: bool = False,
) -> FoldJob:
    """A job of normally distributed keys and queries, or (`extreme`) of any finite header and mantissa.

    Extreme headers have scales and centres of any exponent, zeros and subnormals among them; extreme
    queries are full-scale, zero, or zero but for one channel. The L is the host's choice, or up to 6 below
    it, from −24. Without `head_dim` it is drawn from the design's. ValueError if `blocks` is below 1.
    """
    if blocks < 1:
        raise ValueError(f"blocks is {blocks}; allowed: at least 1")
    head_dim = int(rng.choice(design.head_dims)) if head_dim is None else head_dim
    formats = tuple(KeyFormat(f) for f in rng.choice(key_formats, blocks))
    group = design.query_group
    keys = rng.normal(size=(blocks * design.block_tokens, head_dim)).astype(np.float16)
    key_blocks = quantise_keys(keys, design.block_tokens)
    query = prepare_query(rng.normal(size=(group, head_dim)).astype(np.float16))
    if extreme:
        headers = key_blocks.headers
        headers = BlockHeaders(
            headers.layout,
            _any_fp16(rng, (blocks, head_dim)),
            np.abs(_any_fp16(rng, (blocks, head_dim))),
            rng.integers(CODE.min, CODE.max + 1, (blocks, head_dim)).astype(np.int8),
        )
        key_blocks = KeyBlocks(headers, key_blocks.codes)
        kind = rng.integers(3, size=(group, 1))
        only = np.arange(head_dim) == rng.integers(head_dim, size=(group, 1))
        full = rng.integers(QUERY_MANTISSA.min, QUERY_MANTISSA.max + 1, (group, head_dim))
        mantissa = np.where(kind == 0, full, np.where((kind == 1) & only, QUERY_MANTISSA.max, 0))
        query = PreparedQuery(mantissa, rng.integers(1, 43, group))
    job = fold_job(design, query, key_blocks, formats)
    spare_bits = np.minimum(6, job.score_fraction_bits - MIN_SCORE_FRACTION_BITS)
    return replace(
        job,
        unit=job.unit + rng.integers(0, spare_bits + 1),
        first_token=rng.integers(0, 1 << 20, blocks) * design.block_tokens,
    )


def _any_fp16(rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float16]:
    """Finite FP16 numbers whose exponents are near a random one, or of any size, or zero."""
    significand = rng.integers(-2047, 2048, shape)
    exponent = rng.integers(-24, 6, (shape[0], 1)) + np.where(rng.random(shape) < 0.1, 0, -rng.integers(4))
    numbers = np.where(rng.random(shape) < 0.1, 0, np.ldexp(significand, exponent))
    anywhere = np.ldexp(significand, rng.integers(-24, 6, shape))
    return np.where(rng.random(shape) < 0.02, anywhere, numbers).astype(np.float16)
