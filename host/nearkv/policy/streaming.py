"""Attention sinks and a window of fixed length (StreamingLLM, arXiv 2309.17453)."""

from __future__ import annotations

import numpy as np

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo


class Streaming(Policy):
    """Keeps a few first tokens and a window of fixed length, however large context and pool are.

    The paper's cache: its size does not grow with the context, so that what does not fit in the window is
    dropped although the pool has room. `recency` in contrast fills the pool, a share of the context. The
    window counts tokens of the context, so the unsealed tail lies in it. What is pinned stays in any case.

    Args:
        stream: the stream served.
        sink_tokens: first tokens kept; the paper finds 4 to suffice.
        window_tokens: newest tokens kept; the paper's main setting is a cache of 4 + 1020 tokens.

    Raises ValueError for a negative number.

    """

    def __init__(self, stream: StreamInfo, sink_tokens: int = 4, window_tokens: int = 1020) -> None:
        """Check the two sizes."""
        super().__init__(stream)
        for name, value in (("sink_tokens", sink_tokens), ("window_tokens", window_tokens)):
            if value < 0:
                raise ValueError(f"{name} is {value}; allowed: 0 or more")
        self.sink_tokens = sink_tokens
        self.window_tokens = window_tokens

    def place(self, seen: Observation) -> Mask:
        """The sinks, then the window's newest, as far as the capacity goes."""
        token = np.arange(seen.sealed_tokens)
        sink = token < self.sink_tokens
        # The next step's context has one token more, which is in the window as well.
        window = token > seen.tokens - self.window_tokens
        return seen.fill(np.where(sink, seen.tokens, token), among=sink | window)
