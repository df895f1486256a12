"""The recorded job: key blocks of every head_dim and format of a design, mixed in one stream."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import TOKEN_INDEX
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.scorer_job import ScorerJob, random_job

# What the operands of a block are: uniform over their formats; only at the ends of their ranges; or FP16
# keys and queries through quantiser and folding, as in use.
KINDS = ("random", "extreme", "folded")
MAX_BLOCKS = 1024  # some fifty megabytes of text on the widest design
_OUTLIER_FACTOR = 64  # of a few channels, as real keys have them


@dataclass(frozen=True)
class Recording:
    """A job and the kind of each of its blocks."""

    job: ScorerJob
    kinds: tuple[str, ...]


def record(design: DesignConfig, blocks: int, seed: int) -> Recording:
    """Make a job; equal arguments give equal jobs.

    Block by block it walks through all pairs of head_dim and format, and changes the kind so that each
    pair meets all three kinds within three rounds.

    Raises:
        ValueError: blocks below 1 or above MAX_BLOCKS, a negative seed.

    """
    if not 1 <= blocks <= MAX_BLOCKS:
        raise ValueError(f"blocks is {blocks}; allowed: 1 to {MAX_BLOCKS}")
    if seed < 0:
        raise ValueError(f"seed is {seed}; allowed: from 0")
    rng = np.random.default_rng(seed)
    shapes = list(itertools.product(design.head_dims, KeyFormat))
    # Three rounds see all kinds only if a round does not turn the kind by a multiple of three.
    turn = 2 if len(shapes) % 3 == 2 else 1
    jobs, kinds = [], []
    for block in range(blocks):
        head_dim, key_format = shapes[block % len(shapes)]
        kind = KINDS[(block + turn * (block // len(shapes))) % len(KINDS)]
        kinds.append(kind)
        if kind == "folded":
            jobs.append(_folded_block(design, head_dim, key_format, rng))
        else:
            jobs.append(
                random_job(
                    design,
                    1,
                    rng,
                    key_formats=(key_format,),
                    head_dims=(head_dim,),
                    extreme=kind == "extreme",
                )
            )
    return Recording(_join(jobs), tuple(kinds))


def _folded_block(
    design: DesignConfig, head_dim: int, key_format: KeyFormat, rng: np.random.Generator
) -> ScorerJob:
    keys = rng.standard_normal((design.block_tokens, head_dim))
    keys[:, rng.choice(head_dim, 2, replace=False)] *= _OUTLIER_FACTOR
    blocks = quantise_keys(keys.astype(np.float16), design.block_tokens)
    query = prepare_query(rng.standard_normal((design.query_group, head_dim)).astype(np.float16))
    folded = fold_query(query, blocks.headers, key_format, design.query_code)
    last_block = TOKEN_INDEX.max // design.block_tokens
    return ScorerJob(
        key_format=(key_format,),
        first_token=rng.integers(0, last_block, 1) * design.block_tokens,
        codes=(blocks.codes[0],),
        query_codes=(folded.codes[0],),
        shift=folded.shift,
        bias=folded.bias,
    )


def _join(jobs: list[ScorerJob]) -> ScorerJob:
    """The jobs' blocks as one job."""
    return ScorerJob(
        key_format=tuple(key_format for job in jobs for key_format in job.key_format),
        first_token=np.concatenate([job.first_token for job in jobs]),
        codes=tuple(codes for job in jobs for codes in job.codes),
        query_codes=tuple(codes for job in jobs for codes in job.query_codes),
        shift=np.concatenate([job.shift for job in jobs]),
        bias=np.concatenate([job.bias for job in jobs]),
    )
