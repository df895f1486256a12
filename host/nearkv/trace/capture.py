"""Captures an attention trace: runs a GGUF model over a text and keeps some heads' queries, keys, values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkv.trace import llama
from nearkv.trace.format import AttentionTrace, HeadStream, ModelSource, TextSource, TraceHeader
from nearkv.trace.gguf_file import GgufFile, sha256_of
from nearkv.trace.source import ModelText

# Called with (layers done, layers to run).
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class CaptureRequest:
    """What to capture.

    `context_tokens` is the number of tokens the model reads, from the text's start; `layers` and
    `kv_heads[i]` (of `layers[i]`) count from 0; `queries` is the number of last tokens whose queries are
    kept. `perplexity` asks for the text's perplexity too, which needs every layer.
    """

    model: Path
    text: Path
    context_tokens: int
    layers: tuple[int, ...]
    kv_heads: tuple[tuple[int, ...], ...]
    queries: int
    text_licence: str
    command: str
    perplexity: bool = False


@dataclass(frozen=True)
class CaptureResult:
    """The trace and, where asked for, the perplexity of its `context_tokens` tokens."""

    trace: AttentionTrace
    perplexity: float | None


def capture(request: CaptureRequest, progress: Progress | None = None) -> CaptureResult:
    """Run the model over the text and keep what was asked for.

    Raises ValueError, which quotes the value and says what is allowed, for a model, tokeniser or request
    that is not supported, OSError for a file that cannot be read. Nothing is written.
    """
    if not 1 <= request.queries <= request.context_tokens:
        raise ValueError(f"{request.queries} queries; allowed: 1…{request.context_tokens}, the context")
    if request.perplexity and request.context_tokens < 2:
        raise ValueError("perplexity needs a context of at least 2 tokens")
    source = ModelText(request.model, request.text, request.context_tokens)
    config, model = source.config, source.model
    try:
        header = _header(request, config, model)
    except ValueError as error:
        raise ValueError(f"{request.model}: {error}") from None
    ids = source.token_ids

    streams: list[HeadStream] = []
    last_layer = config.layers - 1 if request.perplexity else request.layers[-1]

    def observe(attention: llama.LayerAttention) -> None:
        if attention.layer in request.layers:
            heads = request.kv_heads[request.layers.index(attention.layer)]
            streams.extend(_keep(attention, head, request.queries) for head in heads)
        if progress is not None:
            progress(attention.layer + 1, last_layer + 1)

    hidden = llama.run_layers(config, model.weight, ids, last_layer, observe, finish=request.perplexity)
    result = None
    if request.perplexity:
        result = llama.perplexity(config, model.weight, hidden, ids, source.tied)
    return CaptureResult(AttentionTrace(header, tuple(streams)), result)


def _header(request: CaptureRequest, config: llama.LlamaConfig, model: GgufFile) -> TraceHeader:
    header = TraceHeader(
        model=ModelSource(
            # Not general.name: often a training label, and silent about the quantisation.
            name=request.model.stem,
            licence=str(model.metadata.get("general.license", "unspecified")),
            digest=f"sha256:{sha256_of(request.model)}",
        ),
        text=TextSource(request.text.name, request.text_licence, sha256_of(request.text)),
        layers=request.layers,
        kv_heads=request.kv_heads,
        query_group=config.query_group,
        head_dim=config.head_dim,
        context_tokens=request.context_tokens,
        first_query_position=request.context_tokens - request.queries,
        steps=request.queries,
        command=request.command,
    )
    for layer, head in header.stream_keys():
        if layer >= config.layers:
            raise ValueError(f"layer {layer} is out of range; allowed: 0…{config.layers - 1}")
        if head >= config.kv_heads:
            raise ValueError(f"KV head {head} is out of range; allowed: 0…{config.kv_heads - 1}")
    return header


def _keep(attention: llama.LayerAttention, head: int, queries: int) -> HeadStream:
    def half(x: NDArray[np.float32]) -> NDArray[np.float16]:
        if (peak := float(np.abs(x).max())) > float(np.finfo(np.float16).max):
            raise ValueError(f"layer {attention.layer}, KV head {head}: {peak:g} does not fit float16")
        return x.astype(np.float16)

    return HeadStream(
        layer=attention.layer,
        kv_head=head,
        key=half(attention.key[head]),
        value=half(attention.value[head]),
        query=half(attention.query[head, :, -queries:]),
    )
