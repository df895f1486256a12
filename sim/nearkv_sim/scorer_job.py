"""Scoring jobs as arrays: what goes into the scorer's three input streams and what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.lib import data
from numpy.typing import ArrayLike, NDArray

from nearkv.codec.key_block import join_planes, split_planes
from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, SHIFT
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.cosim.words import pack_words, unpack_words
from nearkv_sim.golden.scorer import ScorerModel

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class ScorerJob:
    """Key blocks with their folded queries, in streaming order.

    Attributes:
        key_format: what is streamed of each block, length blocks.
        first_token: token index of each block's first score, int64 [blocks].
        codes: int8 [block_tokens, head_dim] per block; head_dim may differ between blocks.
        query_codes: int16 [query_group, head_dim] per block.
        shift: int64 [blocks, query_group].
        bias: int64 [blocks, query_group].

    """

    key_format: tuple[KeyFormat, ...]
    first_token: NDArray[np.int64]
    codes: tuple[NDArray[np.int8], ...]
    query_codes: tuple[NDArray[np.int16], ...]
    shift: NDArray[np.int64]
    bias: NDArray[np.int64]

    @property
    def head_dims(self) -> list[int]:
        """head_dim of each block."""
        return [codes.shape[1] for codes in self.codes]

    def input_words(self, design: DesignConfig) -> dict[str, Words]:
        """Beats of `i_block`, `i_query` and `i_keys` for `CompiledComponent.run`."""
        return stream_words(
            design,
            head_dims=self.head_dims,
            key_formats=self.key_format,
            first_tokens=self.first_token,
            planes=[self._streamed_bytes(block) for block in range(len(self.codes))],
            query_codes=self.query_codes,
            shift=self.shift,
            bias=self.bias,
        )

    def _streamed_bytes(self, block: int) -> NDArray[np.uint8]:
        high, low = split_planes(self.codes[block])
        return np.concatenate([high, low]) if self.key_format[block] is KeyFormat.INT8 else high

    def expected_scores(self, design: DesignConfig) -> NDArray[np.int32]:
        """Golden scores, int32 [tokens, query_group]."""
        model = ScorerModel(design)
        scores = []
        for block, codes in enumerate(self.codes):
            high, low = split_planes(codes)
            layout = design.layout(codes.shape[1])
            seen = join_planes(high, low if self.key_format[block] is KeyFormat.INT8 else None, layout)
            constants = self.shift[block : block + 1], self.bias[block : block + 1]
            scores.append(model.score(seen[None], self.query_codes[block][None], *constants))
        return np.concatenate(scores)

    def expected_tokens(self, design: DesignConfig) -> NDArray[np.int64]:
        """Token index of every score, int64 [tokens]."""
        return (self.first_token[:, None] + np.arange(design.block_tokens)).reshape(-1)


def stream_words(
    design: DesignConfig,
    *,
    head_dims: Sequence[int],
    key_formats: Sequence[KeyFormat],
    first_tokens: ArrayLike,
    planes: Sequence[NDArray[np.uint8]],
    query_codes: Sequence[NDArray[np.int16]],
    shift: ArrayLike,
    bias: ArrayLike,
) -> dict[str, Words]:
    """Beats of `i_block`, `i_query` and `i_keys` for a job of key blocks.

    Args:
        design: the scorer's build.
        head_dims: of each block.
        key_formats: of each block.
        first_tokens: token index of each block's first score.
        planes: per block uint8, its streamed bytes: both planes, or in INT4 the high one.
        query_codes: per block int16 [query_group, head_dim].
        shift: integers [blocks, query_group].
        bias: integers [blocks, query_group].

    """
    command = pack_words(
        command_layout(design),
        first_token=first_tokens,
        head_dim_index=np.array([design.head_dims.index(head_dim) for head_dim in head_dims]),
        key_format=np.array(key_formats, np.int64),
        shift=shift,
        bias=bias,
        last=np.arange(len(planes)) == len(planes) - 1,
    )
    return {
        "i_block": command,
        "i_query": _framed(query_layout(design), query_codes, design.lanes),
        "i_keys": _framed(key_layout(design), planes, design.bus_bytes),
    }


def _framed(layout: data.StructLayout, blocks: Sequence[NDArray[np.integer]], per_beat: int) -> Words:
    """Every block's numbers, `per_beat` a beat; `last` on each block's final beat."""
    beats = np.concatenate([block.reshape(-1) for block in blocks]).reshape(-1, per_beat)
    last = np.zeros(len(beats), np.bool_)
    last[np.cumsum([block.size for block in blocks]) // per_beat - 1] = True
    return pack_words(layout, data=beats, last=last)


def read_scores(
    design: DesignConfig, words: Words
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
    """Split beats of `o_scores` into token int64 [n], scores int32 [n, query_group] and last bool [n]."""
    fields = unpack_words(score_layout(design), words)
    return (
        fields["token"].astype(np.int64),
        fields["scores"].astype(np.int32),
        fields["last"].astype(np.bool_),
    )


def random_job(
    design: DesignConfig,
    blocks: int,
    rng: np.random.Generator,
    *,
    key_formats: tuple[KeyFormat, ...] = (KeyFormat.INT8, KeyFormat.INT4),
    head_dims: tuple[int, ...] | None = None,
    extreme: bool = False,
) -> ScorerJob:
    """A job of uniformly random operands, or (`extreme`) of operands at the ends of their ranges only.

    Shifts and biases are drawn so that every score fits 32 bits. ValueError if `blocks` is below 1.
    """
    if blocks < 1:
        raise ValueError(f"blocks is {blocks}; allowed: at least 1")
    dims = rng.choice(head_dims or design.head_dims, blocks)
    query = design.query_code
    group = design.query_group
    tokens = design.block_tokens
    if extreme:
        codes = [rng.choice(np.array([CODE.min, -1, 0, CODE.max]), (tokens, d)) for d in dims]
        queries = [rng.choice(np.array([-query.max, 0, query.max]), (group, d)) for d in dims]
    else:
        codes = [rng.integers(CODE.min, CODE.max + 1, (tokens, d)) for d in dims]
        queries = [rng.integers(-query.max, query.max + 1, (group, d)) for d in dims]
    # |dot| ≤ 2^7 · Σ|q'|; the largest shift that keeps it below 2^30 leaves room for a bias as large.
    reach = np.array([-CODE.min * np.abs(q).sum(axis=1) for q in queries])
    largest_shift = np.minimum(SHIFT.max, 30 - np.frexp(reach)[1])
    return ScorerJob(
        key_format=tuple(KeyFormat(f) for f in rng.choice(key_formats, blocks)),
        first_token=rng.integers(0, 1 << 20, blocks) * tokens,
        codes=tuple(c.astype(np.int8) for c in codes),
        query_codes=tuple(q.astype(np.int16) for q in queries),
        shift=rng.integers(0, largest_shift + 1),
        bias=rng.integers(-(1 << 30), 1 << 30, (blocks, group)),
    )
