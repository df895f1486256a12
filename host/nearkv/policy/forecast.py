"""Forecasts the next step's query, has it scored, and moves few tokens per step."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import PREFILL_STEP, Float64, Mask, Observation, Policy, StreamInfo
from nearkv.policy.decay import decay_in_place
from nearkv.policy.query_model import QueryModel
from nearkv.policy.ranking import highest


class Forecast(Policy):
    """Keeps the tokens that a forecast of the next query attends, blended with an average of past attention.

    The token that the next step feeds in is known before the step, and so are the queries that the same token
    made earlier. From these and the last query a linear model, trained on the prompt and as it goes, predicts
    the next query (see QueryModel); the device scores it over the cold store. A token's priority is
        b · forecast + (1 − b) · average,   average ← decay · average + (1 − decay) · attention weight
        b = blend · n / (n + trust_queries),   n = queries the model has seen
    At most floor(max_churn · capacity) cold tokens are made hot per step, those of highest priority.

    What it costs beside moves: one more pass of the scorer over the codes per step, and the model's state on
    the host. Where token ids are not known it predicts from the last query alone.

    Args:
        stream: the stream served.
        blend: share of a forecast by a well trained model, 0 (the average alone) to 1.
        trust_queries: queries after which the forecast has half that share, 0 or more.
        decay: of the average, 0 to below 1.
        max_churn: share of the pool's capacity that one step may replace, above 0 to 1.
        rope_base: base of the model's rotary embedding, above 1; the default is SmolLM2's.

    Raises ValueError for an option out of range.

    """

    needs_scoring = True

    def __init__(
        self,
        stream: StreamInfo,
        blend: float = 0.7,
        trust_queries: int = 256,
        decay: float = 0.95,
        max_churn: float = 0.05,
        rope_base: float = 100000.0,
    ) -> None:
        """Start with no attention seen and nothing learned."""
        super().__init__(stream)
        if not 0 <= blend <= 1:
            raise ValueError(f"blend is {blend}; allowed: 0 to 1")
        if trust_queries < 0:
            raise ValueError(f"trust_queries is {trust_queries}; allowed: 0 or more")
        if not 0 <= decay < 1:
            raise ValueError(f"decay is {decay}; allowed: 0 to below 1")
        if not 0 < max_churn <= 1:
            raise ValueError(f"max_churn is {max_churn}; allowed: above 0 to 1")
        if not 1 < rope_base < math.inf:
            raise ValueError(f"rope_base is {rope_base}; allowed: above 1")
        self.blend = blend
        self.trust_queries = trust_queries
        self.decay = decay
        self.max_churn = max_churn
        self.model = QueryModel(rope_base)
        self.average: NDArray[np.float32] = np.zeros(stream.max_tokens, np.float32)
        self._fed_token: int | None = None

    def place(self, seen: Observation) -> Mask:
        """Learn from the step, forecast the next one, exchange what is worth it most."""
        if seen.score is None:
            raise ValueError("score is None; allowed: a function, as needs_scoring asks for")
        if seen.prompt is not None:
            self.model.learn_prompt(seen.prompt, seen.tokens)
        if seen.query is not None:
            self.model.learn(seen.query, seen.tokens - 1, self._fed_token)
        self._fed_token = seen.next_token
        decay_in_place(self.average[: seen.tokens], self.decay, seen.step)
        self.average[seen.selected] += np.float32(1 - self.decay) * seen.weight
        priority = self.average[: seen.sealed_tokens].astype(np.float64)
        query = self.model.predict(seen.tokens, seen.next_token)
        if query is not None and self.blend:
            share = self.blend * self.model.queries / (self.model.queries + self.trust_queries)
            priority = (1 - share) * priority + share * seen.score(query)
        if seen.step == PREFILL_STEP:  # all rows are on the host: no move costs a read
            return seen.fill(priority)
        return seen.fill(priority, among=self._candidates(seen, priority))

    def _candidates(self, seen: Observation, priority: Float64) -> Mask:
        """What is hot, and as many of the best cold tokens as one step may promote."""
        cold = np.flatnonzero(~seen.hot)
        promotions = min(math.floor(self.max_churn * seen.capacity_tokens), len(cold))
        candidates = seen.hot.copy()
        candidates[cold[highest(priority[cold], promotions)]] = True
        return candidates
