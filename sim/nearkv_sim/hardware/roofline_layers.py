"""Kernels of a transformer's prefill and decode step, and their times on equal processors.

Work is split by tensor parallelism: every processor holds 1/N of the heads and of the feed-forward network
and exchanges the residual stream twice per layer (Megatron-LM, Shoeybi et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.model_shapes import ModelShape, require_positive
from nearkv_sim.hardware.roofline import Kernel, KernelTime, ProcessorConfig, kernel_time

SCORES, WEIGHTED_SUM = "attention scores", "attention output"
ATTENTION = "attention"  # first word of every kernel that touches the KV cache
EXCHANGE = "exchange"


@dataclass(frozen=True)
class StepTime:
    """One forward pass.

    Attributes:
        kernels: of one layer, each once per layer.
        head: output embedding, once per step.
        layers: layers.

    """

    kernels: tuple[KernelTime, ...]
    head: KernelTime
    layers: int

    @property
    def time_ps(self) -> int:
        """All layers and the head, one after the other."""
        return self.layers * sum(kernel.time_ps for kernel in self.kernels) + self.head.time_ps

    @property
    def attention_ps(self) -> int:
        """What attention takes of it, in all layers."""
        return self.of(ATTENTION)

    @property
    def flops(self) -> int:
        """Operations of one processor."""
        return self.layers * sum(k.kernel.flops for k in self.kernels) + self.head.kernel.flops

    @property
    def nbytes(self) -> int:
        """Bytes between one processor and its memory."""
        return self.layers * sum(k.kernel.nbytes for k in self.kernels) + self.head.kernel.nbytes

    def of(self, prefix: str) -> int:
        """Time in ps, in all layers, of the kernels whose name starts with `prefix`."""
        return self.layers * sum(k.time_ps for k in self.kernels if k.kernel.name.startswith(prefix))


def decode_step(
    processor: ProcessorConfig,
    shape: ModelShape,
    context_tokens: int,
    batch: int,
    *,
    processors: int = 1,
    split_context: bool = True,
    attention: bool = True,
) -> StepTime:
    """Time of one decode step of `batch` sequences.

    Args:
        processor: one of them.
        shape: the model.
        context_tokens: tokens that attention reads, per sequence.
        batch: sequences.
        processors: how many share every layer; divides the heads.
        split_context: spread a head's context over all multiprocessors and keep its scores on chip
            (Flash-Decoding, Dao et al. 2023); False gives each head one thread block and writes the scores
            to memory between two kernels, as the AttAcc simulator assumes.
        attention: False leaves attention out, for machines that compute it elsewhere.

    Raises:
        ValueError: a count below 1, or heads that the processors cannot share.

    """
    _check(shape, context_tokens, batch, processors)
    kernels = _linear_kernels(processor, shape, batch, processors)
    if attention:
        kernels += _decode_attention(shape, context_tokens, batch, processors, split_context)
    return _timed(processor, shape, kernels, _head(shape, batch, processors))


def prefill(
    processor: ProcessorConfig, shape: ModelShape, tokens: int, batch: int, *, processors: int = 1
) -> StepTime:
    """Time of the pass that reads a prompt of `tokens` tokens, causal attention with scores kept on chip.

    Raises:
        ValueError: a count below 1, or heads that the processors cannot share.

    """
    _check(shape, tokens, batch, processors)
    kernels = _linear_kernels(processor, shape, batch * tokens, processors)
    size = shape.bytes_per_value
    pairs = tokens * (tokens + 1) // 2
    flops = 4 * batch * shape.query_heads * shape.head_dim * pairs // processors
    values = 2 * batch * tokens * shape.head_dim * (shape.query_heads + shape.kv_heads) // processors
    kernels.append(Kernel(ATTENTION, flops, values * size))
    return _timed(processor, shape, kernels, _head(shape, batch, processors))


def _check(shape: ModelShape, tokens: int, batch: int, processors: int) -> None:
    require_positive("context", tokens)
    require_positive("batch", batch)
    require_positive("processors", processors)
    if shape.query_heads % processors or (shape.kv_heads % processors and processors % shape.kv_heads):
        raise ValueError(
            f"processors is {processors}; allowed: divisors of {shape.query_heads} query heads that share"
            f" {shape.kv_heads} KV heads evenly"
        )


def _linear_kernels(processor: ProcessorConfig, shape: ModelShape, rows: int, share: int) -> list[Kernel]:
    """Projections, feed-forward network, element-wise kernels and exchanges for `rows` tokens."""
    size = shape.bytes_per_value
    attention_width = shape.head_dim * shape.query_heads // share
    qkv_width = attention_width + 2 * shape.head_dim * shape.kv_heads // share
    ffn_width = shape.ffn // share

    def matrix(name: str, parameters: int, inputs: int, outputs: int) -> Kernel:
        weights = parameters // share
        return Kernel(name, 2 * rows * weights, (weights + rows * (inputs + outputs)) * size)

    up_matrices = shape.ffn_matrices - 1
    up = up_matrices * shape.hidden * shape.ffn
    kernels = [
        matrix("qkv", shape.qkv_parameters, shape.hidden, qkv_width),
        matrix("projection", shape.output_parameters, attention_width, shape.hidden),
        matrix("ffn up", up, shape.hidden, up_matrices * ffn_width),
        matrix("ffn down", shape.ffn_parameters - up, ffn_width, shape.hidden),
        Kernel(
            "activation",
            8 * rows * ffn_width,
            (up_matrices + 1) * rows * ffn_width * size,
            None,
            processor.activation_overhead_ps,
        ),
    ]
    for index in (1, 2):
        values = rows * shape.hidden
        kernels.append(
            Kernel(f"norm {index}", 5 * values, 3 * values * size, None, processor.norm_overhead_ps)
        )
        if share > 1:
            kernels.append(_exchange(processor, rows * shape.hidden * size, share, index))
    return kernels


def _exchange(processor: ProcessorConfig, nbytes: int, share: int, index: int) -> Kernel:
    """Ring all-reduce: 2·(N−1) hops of 1/N of the data."""
    if not processor.interconnect_bytes_per_s:
        raise ValueError(f"processors is {share}; allowed: 1, this processor has no interconnect")
    piece = -(-nbytes // share)
    hop_ps = processor.hop_latency_ps - (-piece * PS_PER_S // processor.interconnect_bytes_per_s)
    return Kernel(f"{EXCHANGE} {index}", 0, 0, None, 2 * (share - 1) * hop_ps)


def _decode_attention(
    shape: ModelShape, context: int, batch: int, share: int, split_context: bool
) -> list[Kernel]:
    size = shape.bytes_per_value
    heads = batch * shape.query_heads // share
    kv_heads = batch * max(1, shape.kv_heads // share)
    flops = 2 * heads * context * shape.head_dim
    rows_bytes = kv_heads * context * shape.head_dim * size  # of the keys, and again of the values
    vectors_bytes = heads * shape.head_dim * size  # queries, and again outputs
    if split_context:
        return [Kernel(ATTENTION, 2 * flops, 2 * (rows_bytes + vectors_bytes))]
    scores_bytes = heads * context * size
    return [
        Kernel(SCORES, flops, rows_bytes + vectors_bytes + scores_bytes, heads),
        Kernel("attention softmax", 5 * heads * context, 2 * scores_bytes, heads),
        Kernel(WEIGHTED_SUM, flops, rows_bytes + vectors_bytes + scores_bytes, heads),
    ]


def _head(shape: ModelShape, rows: int, share: int) -> Kernel:
    weights = shape.head_parameters // share
    nbytes = (weights + rows * (shape.hidden + shape.vocabulary // share)) * shape.bytes_per_value
    return Kernel("output embedding", 2 * rows * weights, nbytes)


def _timed(processor: ProcessorConfig, shape: ModelShape, kernels: list[Kernel], head: Kernel) -> StepTime:
    times = tuple(kernel_time(processor, kernel) for kernel in kernels)
    return StepTime(times, kernel_time(processor, head), shape.layers)
