"""What a policy costs a model: the likelihood of a text's last tokens when only the hot pool is attended.

The whole text goes through the model layer by layer. In every layer the policy places tokens step by step on
that layer's own queries and keys, and the last tokens attend what is hot; what they get wrong, the next layer
starts from. Everything before them is the prompt, with full attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearkv.experiments.replay import replay
from nearkv.experiments.replay_protocol import ReplayProtocol
from nearkv.experiments.replay_stream import ReplayStream
from nearkv.policy.base import Float64, Mask, StreamInfo
from nearkv.policy.registry import build_policy
from nearkv.trace.format import HeadStream
from nearkv.trace.llama import LayerAttention, LlamaConfig, losses, run_layers
from nearkv.trace.source import ModelText


@dataclass(frozen=True)
class Likelihood:
    """Result of one policy.

    Attributes:
        loss: nats per token, mean over the steps.
        mass_kept: of each layer's own attention, mean over layers, KV heads and steps.

    """

    loss: float
    mass_kept: float


class LikelihoodRun:
    """A model and a text, ready for policies.

    Args:
        model: GGUF file of a llama.
        text: UTF-8 text.
        context_tokens: tokens of it that are read.
        protocol: sizes of the pool; its scored steps are the tokens that are judged.

    Raises ValueError as the capture does, and for fewer tokens than steps to judge.

    """

    def __init__(self, model: Path, text: Path, context_tokens: int, protocol: ReplayProtocol) -> None:
        steps = protocol.scored_steps
        if context_tokens < steps + 2:
            raise ValueError(
                f"context-tokens is {context_tokens}; allowed: from {steps + 2}, two before the steps"
            )
        if protocol.warmup_steps:
            raise ValueError(f"warmup_steps is {protocol.warmup_steps}; allowed: 0, all before is the prompt")
        self._source = ModelText(model, text, context_tokens)
        self._protocol = protocol

    @property
    def config(self) -> LlamaConfig:
        """Of the model."""
        return self._source.config

    def full(self, progress: Callable[[int, int], None] | None = None) -> float:
        """Loss with full attention, nats per token."""
        return float(self._losses(None, progress).mean())

    def policy(
        self, name: str, options: dict[str, object], progress: Callable[[int, int], None] | None = None
    ) -> Likelihood:
        """Loss with what a policy keeps hot; ValueError as `build_policy` and `replay`."""
        kept: list[float] = []

        def restrict(attention: LayerAttention) -> Mask:
            return self._hot(attention, name, options, kept)

        loss = float(self._losses(restrict, progress).mean())
        return Likelihood(loss, float(np.mean(kept)))

    def _losses(
        self,
        restrict: Callable[[LayerAttention], Mask] | None,
        progress: Callable[[int, int], None] | None,
    ) -> Float64:
        source, config, steps = self._source, self._source.config, self._protocol.scored_steps

        def observe(attention: LayerAttention) -> None:
            if progress is not None:
                progress(attention.layer + 1, config.layers)

        # The last token is only a target.
        hidden = run_layers(
            config, source.weight, source.token_ids[:-1], config.layers - 1, observe, True, restrict
        )
        return losses(config, source.weight, hidden[-steps:], source.token_ids[-steps:], source.tied)

    def _hot(
        self, attention: LayerAttention, name: str, options: dict[str, object], kept: list[float]
    ) -> Mask:
        steps, tokens = self._protocol.scored_steps, attention.key.shape[1]
        allowed = np.zeros((len(attention.key), steps, tokens), np.bool_)
        for head in range(len(attention.key)):
            stream = HeadStream(
                attention.layer,
                head,
                attention.key[head].astype(np.float16),
                attention.value[head].astype(np.float16),
                attention.query[head, :, -steps:].astype(np.float16),
            )

            def watch(_name: str, step: int, hot: Mask, head: int = head) -> None:
                allowed[head, step, : len(hot)] = hot

            policy = build_policy(name, StreamInfo(attention.layer, head, tokens + 1), options)
            ids = self._source.token_ids[:tokens]
            result = replay(
                ReplayStream((stream,), tokens - steps, ids), {name: policy}, self._protocol, watch
            )
            kept.append(float(result[name].mass_kept.mean()))
        return allowed
