"""An in-memory device and small synthetic traces for tests of policies and experiments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from nearkv.codec.query import LOG2_E
from nearkv.device.cold_store import Scores
from nearkv.device.transport import TransportCounters
from nearkv.trace.format import AttentionTrace, HeadStream, ModelSource, TextSource, TraceHeader
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.layout import KeyFormat

BLOCK_TOKENS = 128
FRACTION_BITS = 12
PS_PER_BYTE = 1_000
KEY_STEP = {KeyFormat.INT8: 1 / 32, KeyFormat.INT4: 1 / 2}


@dataclass
class FakeDevice:
    """Scores in numpy from rounded keys; a byte costs PS_PER_BYTE, a token of a job one cycle."""

    now_ps: int = 0
    counters: TransportCounters = field(default_factory=TransportCounters)
    jobs: list[list[int]] = field(default_factory=list)
    fetches: list[list[int]] = field(default_factory=list)
    identities: dict[str, StreamIdentity] = field(default_factory=dict)

    def open_stream(self, name: str, head_dim: int, identity: StreamIdentity) -> FakeColdStream:
        self.identities[name] = identity
        return FakeColdStream(self, head_dim)

    def charge(self, to_device: int = 0, from_device: int = 0, cycles: int = 0) -> None:
        self.now_ps += (to_device + from_device) * PS_PER_BYTE
        self.counters = replace(
            self.counters,
            payload_bytes_to_device=self.counters.payload_bytes_to_device + to_device,
            payload_bytes_from_device=self.counters.payload_bytes_from_device + from_device,
            device_cycles=self.counters.device_cycles + cycles,
        )


class FakeColdStream:
    def __init__(self, device: FakeDevice, head_dim: int) -> None:
        self.device = device
        self.keys = np.empty((0, head_dim), np.float16)
        self.values = np.empty((0, head_dim), np.float16)

    def seal(self, keys, values):
        assert len(keys) % BLOCK_TOKENS == 0
        self.keys = np.concatenate([self.keys, keys])
        self.values = np.concatenate([self.values, values])
        self.device.charge(to_device=keys.nbytes + values.nbytes)

    def score(self, query, block_indices, key_format):
        blocks = np.asarray(block_indices)
        assert len(blocks)
        tokens = (blocks[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)).reshape(-1)
        step = KEY_STEP[key_format]
        keys = np.round(self.keys[tokens].astype(np.float64) / step) * step
        logits = keys @ query.T.astype(np.float64) * (LOG2_E / np.sqrt(query.shape[1]))
        scores = np.floor(logits * 2**FRACTION_BITS + 0.5).astype(np.int32)
        self.device.jobs.append(blocks.tolist())
        self.device.charge(to_device=query.nbytes, from_device=scores.nbytes, cycles=len(tokens))
        return Scores(tokens, scores, np.full(len(query), FRACTION_BITS, np.int64))

    def fetch(self, tokens):
        assert len(tokens)
        assert np.max(tokens) < len(self.keys)
        self.device.fetches.append(np.asarray(tokens).tolist())
        self.device.charge(from_device=2 * self.keys[tokens].nbytes)
        return self.keys[tokens], self.values[tokens]


def make_trace(
    first_query_position: int = 300, steps: int = 12, streams: int = 2, group: int = 3, seed: int = 1
) -> AttentionTrace:
    """Random rows with some structure: a few keys attract every query, and queries drift slowly."""
    rng = np.random.default_rng(seed)
    head_dim, context = 64, first_query_position + steps
    source = "0" * 64
    header = TraceHeader(
        model=ModelSource("synthetic", "CC0-1.0", f"sha256:{source}"),
        text=TextSource("synthetic", "CC0-1.0", source),
        layers=tuple(range(streams)),
        kv_heads=((0,),) * streams,
        query_group=group,
        head_dim=head_dim,
        context_tokens=context,
        first_query_position=first_query_position,
        steps=steps,
        command="make_trace()",
    )

    def stream(layer: int) -> HeadStream:
        key = rng.standard_normal((context, head_dim)) * 1.5
        value = rng.standard_normal((context, head_dim))
        drift = np.cumsum(rng.standard_normal((group, steps, head_dim)) * 0.3, axis=1)
        query = rng.standard_normal((group, 1, head_dim)) + drift
        return HeadStream(layer, 0, *(rows.astype(np.float16) for rows in (key, value, query)))

    return AttentionTrace(header, tuple(stream(layer) for layer in range(streams)))


@pytest.fixture
def fake_device() -> type[FakeDevice]:
    return FakeDevice


@pytest.fixture
def trace_of() -> Callable[..., AttentionTrace]:
    return make_trace
