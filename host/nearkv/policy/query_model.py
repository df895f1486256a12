"""Predicts the next step's query of one KV head from the token that is fed in and from the last query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.policy.base import Float16, Prompt

Float32 = NDArray[np.float32]

# Chosen on text that docs/policy-results.md does not report; see there.
RIDGE = 3e-3  # pull to zero, as a share of the features' mean square
PRIOR_COUNT = 1.0  # how many occurrences of a token the mean over all tokens counts for
OCCURRENCE_DECAY = 1 - 1 / 16  # of a token's earlier queries, at each of its occurrences
REFIT_STEPS = 64


def rotate(rows: Float32, positions: NDArray[np.int64], rope_base: float) -> Float32:
    """Rotary embedding (arXiv 2104.09864), element j paired with j + head_dim/2; negative positions undo it.

    Args:
        rows: float32 [..., n, head_dim], head_dim even.
        positions: int64 [n].
        rope_base: base of the frequencies.

    Returns:
        float32, shaped like `rows`. Angles are float64: a position of 10⁵ loses digits in float32.

    """
    half = rows.shape[-1] // 2
    angle = np.outer(positions, rope_base ** (-np.arange(half) / half))
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


class QueryModel:
    """Ridge regression of a step's query on what is known before the step.

    Formula, with queries q_t taken before the rotary embedding, all heads of the group in one vector:
        m(id) = (Σ γ^k · q of the k-th last step that was fed id  +  mean of all q) / (n(id) + 1)
        q̂_t  = Wᵀ [m(id_t), q_(t−1), 1/(1 + n(id_t)), 1]
    γ is OCCURRENCE_DECAY and n(id) = Σ γ^k. W = (A + rI)⁻¹B with A = Σ x xᵀ and B = Σ x qᵀ over all steps
    seen, r = RIDGE · trace(A)/features; W is solved for after the prompt and every REFIT_STEPS steps. The
    query of a token that was never fed in is predicted from the last query and the mean of all.

    State: (2w + 2)·(3w + 2) float32 for A and B, w = heads · head_dim, and w float32 for each distinct token.

    Args:
        rope_base: base of the rotary embedding.

    """

    def __init__(self, rope_base: float) -> None:
        """Start without having seen a query; its shape is taken from the first one."""
        self._rope_base = rope_base
        self._shape = (0, 0)  # heads, head_dim
        self.queries = 0
        self._unfitted: list[tuple[Float32, Float32]] = []  # features and queries not in A and B yet
        self._by_token: dict[int, tuple[Float32, float]] = {}
        self._total: Float32 = np.zeros(0, np.float32)
        self._last: Float32 = np.zeros(0, np.float32)
        self._moment: Float32 = np.zeros((0, 0), np.float32)
        self._response: Float32 = np.zeros((0, 0), np.float32)
        self._solution: Float32 | None = None

    def learn_prompt(self, prompt: Prompt, tokens: int) -> None:
        """Take in the queries of a prompt that ends at position tokens − 1."""
        count = prompt.query.shape[1]
        positions = np.arange(tokens - count, tokens)
        rows = self._flat(prompt.query, positions)
        ids = [None] * count if prompt.token is None else prompt.token.tolist()
        for row, token in zip(rows, ids, strict=True):
            self._take_in(row, token)
        self._fit()

    def learn(self, query: Float16, position: int, token: int | None) -> None:
        """Take in the query float16 [heads, head_dim] of the step that fed `token` in at `position`."""
        self._take_in(self._flat(query[:, None], np.array([position]))[0], token)
        if len(self._unfitted) >= REFIT_STEPS:
            self._fit()

    def predict(self, position: int, token: int | None) -> Float32 | None:
        """The query float32 [heads, head_dim] to expect at `position`; None before anything was fitted."""
        if self._solution is None:
            return None
        row = (self._feature(token) @ self._solution).reshape(self._shape)
        return rotate(row[:, None], np.array([position]), self._rope_base)[:, 0]

    def _flat(self, query: Float16, positions: NDArray[np.int64]) -> Float32:
        """Queries [heads, n, head_dim] before the rotary embedding, float32 [n, heads · head_dim]."""
        heads, count, head_dim = query.shape
        if not self.queries:
            self._shape, width = (heads, head_dim), heads * head_dim
            self._total, self._last = np.zeros((2, width), np.float32)
            self._moment = np.zeros((2 * width + 2, 2 * width + 2), np.float32)
            self._response = np.zeros((2 * width + 2, width), np.float32)
        plain = rotate(query.astype(np.float32), -positions, self._rope_base)
        return plain.transpose(1, 0, 2).reshape(count, heads * head_dim)

    def _feature(self, token: int | None) -> Float32:
        total, count = self._total / np.float32(max(self.queries, 1)), 0.0
        mean = total
        if token is not None and token in self._by_token:
            earlier, count = self._by_token[token]
            mean = (earlier + np.float32(PRIOR_COUNT) * total) / np.float32(count + PRIOR_COUNT)
        return np.concatenate([mean, self._last, np.array([1 / (1 + count), 1], np.float32)])

    def _take_in(self, row: Float32, token: int | None) -> None:
        """Note a query, and what it could have been predicted from."""
        if self.queries:  # the first one has no query before it
            self._unfitted.append((self._feature(token), row))
        if token is not None:
            earlier, count = self._by_token.get(token, (np.zeros_like(row), 0.0))
            self._by_token[token] = (
                earlier * np.float32(OCCURRENCE_DECAY) + row,
                count * OCCURRENCE_DECAY + 1,
            )
        self._total = self._total + row
        self._last = row
        self.queries += 1

    def _fit(self) -> None:
        if not self._unfitted:
            return
        features, rows = (np.stack(part) for part in zip(*self._unfitted, strict=True))
        self._unfitted.clear()
        self._moment += features.T @ features
        self._response += features.T @ rows
        size = len(self._moment)
        pull = np.float32(RIDGE * self._moment.trace() / size)
        regular = self._moment + pull * np.eye(size, dtype=np.float32)
        self._solution = np.linalg.solve(regular, self._response)
