"""What one decode step asks per layer: bytes scored, streamed, fetched, moved, and kernels of the GPU.

Tokens of the newest blocks that are not sealed yet count as hot. Norms, rotary embeddings and the sampling of
the next token are left out of the GPU's kernels: below 0.1 % of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nearkv.pipeline.settings import Method, PipelineSettings

KEYS_AND_VALUES = 2
CODE_BITS = 8  # of a stored key code; INT4 streams its high half
SCORE_BYTES = 4  # a 32-bit score per token and query head
FLOPS_PER_MAC = 2
BLOCK_TOKENS = 128  # tokens of a key block share one folded query


class ModelGeometry(Protocol):
    """Shape of a decoder-only transformer, as `nearkv machine --model` knows it."""

    @property
    def layers(self) -> int:
        """Decoder layers."""

    @property
    def query_heads(self) -> int:
        """Query heads per layer."""

    @property
    def kv_heads(self) -> int:
        """KV heads per layer; divides query_heads."""

    @property
    def head_dim(self) -> int:
        """Channels of a head."""

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""

    @property
    def bytes_per_value(self) -> int:
        """Of weights and KV cache."""

    @property
    def qkv_parameters(self) -> int:
        """Weights of a layer's query, key and value projections."""

    @property
    def output_parameters(self) -> int:
        """Weights of a layer's output projection."""

    @property
    def ffn_parameters(self) -> int:
        """Weights of a layer's feed-forward network."""

    @property
    def head_parameters(self) -> int:
        """Weights of the output embedding."""

    @property
    def weight_bytes(self) -> int:
        """All weights."""


@dataclass(frozen=True)
class GpuKernel:
    """Operations (a multiply-add counts two) and bytes of memory traffic."""

    flops: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class StepLoad:
    """Sequences of a decode step and where their KV cache lies.

    Attributes:
        context_tokens: of every sequence.
        batch: sequences.
        hot_bytes: of the KV cache in the hot pool; the rest is in the cold tier.
        promoted_bytes, demoted_bytes: rows that change pools in this step, besides those fetched anyway.
        preempted_bytes: KV cache of sequences that are put aside and brought back in this step.

    ValueError for a count below 1 or negative bytes.

    """

    context_tokens: int
    batch: int
    hot_bytes: int
    promoted_bytes: int = 0
    demoted_bytes: int = 0
    preempted_bytes: int = 0

    def __post_init__(self) -> None:
        """Check every number."""
        for name, least in (("context_tokens", 1), ("batch", 1), ("hot_bytes", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from {least}")
        for name in ("promoted_bytes", "demoted_bytes", "preempted_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 0")


@dataclass(frozen=True, kw_only=True)
class LayerWork:
    """One layer of one step, all sequences together. Sizes are bytes.

    Attributes:
        hot_kv, cold_kv: KV cache of the layer in the two pools.
        hot_scored: FP16 keys that the CPU reads, and codes of the cold pool with host scoring.
        cold_scored: key codes that the card reads.
        streamed: of those, codes that do not fit into the card's memory and come from the drive.
        queries: folded queries that go to the card.
        scores: what comes back from it.
        hot_fetched, cold_fetched: rows that go to the GPU from either pool.
        late_fetched: rows from the cold pool that only the layer's own query asks for.
        piece: size of the pieces in which selected rows lie scattered; 0 for consecutive rows.
        appended: rows of the new tokens, from GPU to hot pool.
        sealed: the same rows and their key codes, later written to the cold tier.
        promoted, demoted: rows that change pools beside the step.
        preempted: rows put aside and brought back.
        weights: that do not lie in GPU memory.
        query, attention, rest: kernels: projections, attention, all that follows.
        prediction: projection of the predicted query.

    """

    hot_kv: int
    cold_kv: int
    hot_scored: int
    cold_scored: int
    streamed: int
    queries: int
    scores: int
    hot_fetched: int
    cold_fetched: int
    late_fetched: int
    piece: int
    appended: int
    sealed: int
    promoted: int
    demoted: int
    preempted: int
    weights: int
    query: GpuKernel
    attention: GpuKernel
    rest: GpuKernel
    prediction: GpuKernel


def layer_work(
    model: ModelGeometry,
    load: StepLoad,
    settings: PipelineSettings,
    *,
    card_bytes: int,
    gpu_bytes: int,
) -> LayerWork:
    """Work of one layer; all layers are alike.

    Args:
        model: its shape.
        load: sequences and placement.
        settings: of the pipeline.
        card_bytes: memory of the card, for key codes of all layers; what does not fit is streamed each step.
        gpu_bytes: memory of the GPU, for weights; what does not fit comes over the link each step.

    Raises:
        ValueError: more hot bytes than the KV cache has, or a recency window larger than the hot pool.

    """
    size = model.bytes_per_value
    token_bytes = KEYS_AND_VALUES * model.kv_heads * model.head_dim * size
    kv = token_bytes * load.context_tokens * load.batch
    if load.hot_bytes > kv * model.layers:
        raise ValueError(f"hot_bytes is {load.hot_bytes}; allowed: at most the cache, {kv * model.layers}")
    hot = load.hot_bytes // model.layers
    cold = kv - hot
    cold_codes = cold // (KEYS_AND_VALUES * size) * settings.code_bits // CODE_BITS
    cold_tokens = -(-cold // token_bytes)  # a pool's bytes come from a share, and need not be whole rows
    least = token_bytes // model.kv_heads if settings.selects else size  # a row of one head, or one value
    attended = kv if settings.method is Method.FULL else max(least, int(kv * settings.select_fraction))
    hot_fetched, cold_fetched = _fetched(hot, cold, attended, settings)
    late = int(cold_fetched * settings.late_fraction)
    near, host = settings.method is Method.NEAR_DATA, settings.method is Method.HOST_SCORING
    cached = card_bytes // model.layers
    appended = token_bytes * load.batch
    piece = token_bytes // model.kv_heads if settings.per_head_selection else token_bytes
    rows = load.batch
    values = attended // size  # keys and values
    group = model.query_heads // model.kv_heads
    q_parameters = model.qkv_parameters * model.query_heads // (model.query_heads + 2 * model.kv_heads)
    return LayerWork(
        hot_kv=hot,
        cold_kv=cold,
        hot_scored=(hot // KEYS_AND_VALUES + (cold_codes if host else 0)) if near or host else 0,
        cold_scored=cold_codes if near else 0,
        streamed=max(0, cold_codes - cached) if near else (cold_codes if host else 0),
        queries=-(-cold_tokens // BLOCK_TOKENS) * model.query_heads * model.head_dim if near else 0,
        scores=cold_tokens * model.query_heads * SCORE_BYTES if near else 0,
        hot_fetched=hot_fetched,
        cold_fetched=cold_fetched - late,
        late_fetched=late,
        piece=piece if settings.selects else 0,
        appended=appended,
        sealed=appended + appended // (KEYS_AND_VALUES * size),
        promoted=load.promoted_bytes // model.layers,
        demoted=load.demoted_bytes // model.layers,
        preempted=load.preempted_bytes // model.layers,
        weights=max(0, model.weight_bytes - gpu_bytes) // model.layers,
        query=matrix_kernel(model.qkv_parameters, rows, size),
        attention=GpuKernel(FLOPS_PER_MAC * values * group, attended),
        rest=matrix_kernel(model.output_parameters + model.ffn_parameters, rows, size),
        prediction=matrix_kernel(q_parameters, rows, size),
    )


def output_kernel(model: ModelGeometry, batch: int) -> GpuKernel:
    """Output embedding, once per step."""
    return matrix_kernel(model.head_parameters, batch, model.bytes_per_value)


def _fetched(hot: int, cold: int, attended: int, settings: PipelineSettings) -> tuple[int, int]:
    if settings.method is Method.FULL:
        return hot, cold
    if settings.method is Method.RECENCY:
        if attended > hot:
            raise ValueError(
                f"select_fraction is {settings.select_fraction}, {attended} bytes of a layer; allowed with"
                f" recency: what the hot pool holds, {hot}"
            )
        return attended, 0
    share = settings.hot_hit_fraction
    from_hot = attended * hot // (hot + cold) if share is None else int(attended * share)
    # A pool cannot give more than it holds, whatever the hit rate.
    from_hot = max(min(from_hot, hot), attended - cold)
    return from_hot, attended - from_hot


def matrix_kernel(parameters: int, rows: int, size: int) -> GpuKernel:
    """Product of `rows` vectors with weights of `size` bytes, read once for all; activations are small."""
    return GpuKernel(FLOPS_PER_MAC * rows * parameters, parameters * size)
