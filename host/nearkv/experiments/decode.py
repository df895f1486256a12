"""One stream's decode steps: score, select, fetch, attend, seal, place; and what each of them cost."""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nearkv.device.transport import TransportCounters
from nearkv.experiments import attention
from nearkv.experiments.config import ExperimentConfig, Selection
from nearkv.experiments.records import StepRecord
from nearkv.kvcache.budget import HotBudget, share_ceil
from nearkv.kvcache.stream import ColdTier, TieredStream
from nearkv.policy.base import PREFILL_STEP, Mask, Observation, StreamInfo, TokenIndex
from nearkv.policy.registry import build_policy
from nearkv.trace.format import AttentionTrace, HeadStream

# L where no device score sets one: the processing units' scores are Q15.16.
HOST_FRACTION_BITS = 16
NEVER_SELECTED = np.iinfo(np.int64).min


class Device(Protocol):
    """What a run needs of an opened device."""

    @property
    def now_ps(self) -> int:
        """Simulated time."""

    @property
    def counters(self) -> TransportCounters:
        """Totals since it was opened."""

    def open_stream(self, name: str, head_dim: int) -> ColdTier:
        """Start an empty stream of the cold store."""


class Meter:
    """Splits a device's time and traffic into intervals."""

    def __init__(self, device: Device) -> None:
        """Start the first interval."""
        self._device = device
        self._time_ps = device.now_ps
        self._counters = device.counters

    def lap_ps(self) -> int:
        """Time since the last call."""
        before, self._time_ps = self._time_ps, self._device.now_ps
        return self._time_ps - before

    def traffic(self) -> TransportCounters:
        """What the counters gained since the last call."""
        before, self._counters = self._counters, self._device.counters
        return self._counters - before


class StreamRun:
    """Replays one stream of a trace on a tiered cache.

    A step appends its token, scores, selects, reads the rows it attends, seals a full tail, and lets the
    policy place the sealed tokens for the next step.
    """

    def __init__(
        self, config: ExperimentConfig, trace: AttentionTrace, stream: HeadStream, device: Device, steps: int
    ) -> None:
        """Open the stream on the device; `steps` is how many will be run at most."""
        max_tokens = trace.first_query_position + steps
        info = StreamInfo(stream.layer, stream.kv_head, max_tokens, config.seed)
        self._config = config
        self._stream = stream
        self._first_position = trace.first_query_position
        self._trace_steps = trace.steps
        self._exact_keys = stream.key.astype(np.float64)
        self._exact_values = stream.value.astype(np.float64)
        self._policy = build_policy(config.policy.name, info, config.policy.options)
        hot_fraction = config.hot_fraction if self._policy.bounded else 1.0
        self._budget = HotBudget(hot_fraction, config.recent_fraction, config.sinks)
        self._tier = TieredStream(
            device.open_stream(stream.name, trace.head_dim),
            trace.head_dim,
            max_tokens,
            config.design_config.block_tokens,
        )
        self._meter = Meter(device)

    def prefill(self) -> int:
        """Append and seal everything before the first query; returns the tokens sealed.

        The rows are on the host when they are sealed, so the first placement reads nothing.
        """
        before = slice(0, self._first_position)
        self._tier.append(self._stream.key[before], self._stream.value[before])
        sealed = self._tier.seal_full_blocks()
        nothing = np.empty(0, np.int64)
        self._tier.place(self._decide(PREFILL_STEP, nothing, np.empty(0)))
        return sealed

    def step(self, step: int) -> StepRecord:
        """Run one decode step."""
        position = self._first_position + step
        row = slice(position, position + 1)
        self._tier.append(self._stream.key[row], self._stream.value[row])
        tokens = self._tier.tokens
        query = self._stream.query[:, step]
        hot, sealed_tokens = self._tier.hot(), self._tier.sealed_tokens
        count = share_ceil(self._config.select_fraction, tokens)
        exact_logits = attention.logits(query, self._exact_keys[:tokens])
        exact = attention.softmax(exact_logits)

        self._meter.lap_ps()
        self._meter.traffic()
        if self._config.selection is Selection.SCORE_ALL:
            scores, measured, fraction_bits, blocks, score_crc32 = self._score(query, hot)
            score_ps = self._meter.lap_ps()
            selected = attended = attention.select(attention.score_weights(scores, fraction_bits), count)
            hit_rate = hot[selected].mean()
            fetched_tokens = int((~hot[selected]).sum())
        else:
            measured, attended = self._hot_scores(query, hot), np.flatnonzero(hot)
            score_ps, blocks, score_crc32, fetched_tokens = 0, 0, 0, 0
            hit_rate = hot[attention.select(exact, count)].mean()
        keys, values = self._tier.read(attended)
        fetch_ps = self._meter.lap_ps()
        weights = attention.attention_weights(query, keys)
        output = attention.attend(weights, values)
        if self._config.selection is Selection.HOT_ONLY:
            selected = attended[attention.select(weights, min(count, len(attended)))]

        self._tier.seal_full_blocks()
        seal_ps = self._meter.lap_ps()
        selected_weight = weights.mean(axis=1)[np.searchsorted(attended, selected)]
        moves = self._tier.place(self._decide(step, selected, selected_weight))
        promote_ps = self._meter.lap_ps()
        traffic = self._meter.traffic()
        return StepRecord(
            step=step,
            position=position,
            stream=self._stream.name,
            hot_tokens=int(hot.sum()),
            sealed_tokens=sealed_tokens,
            selected_tokens=len(selected),
            attended_tokens=len(attended),
            hit_rate=float(hit_rate),
            mass_kept=float(exact[attended].sum(axis=0).mean()),
            output_error=attention.relative_error(
                output, attention.attend(exact, self._exact_values[:tokens])
            ),
            recall=tuple(attention.recall(measured, exact_logits, count).tolist()),
            scored_blocks=blocks,
            fetched_tokens=fetched_tokens,
            promoted_tokens=moves.promoted_tokens,
            promotion_read_tokens=moves.promotion_read_tokens,
            demoted_tokens=moves.demoted_tokens,
            to_device_bytes=traffic.payload_bytes_to_device,
            from_device_bytes=traffic.payload_bytes_from_device,
            device_cycles=traffic.device_cycles,
            score_time_ps=score_ps,
            fetch_time_ps=fetch_ps,
            seal_time_ps=seal_ps,
            promote_time_ps=promote_ps,
            score_crc32=score_crc32,
            selection_crc32=zlib.crc32(selected.astype("<i8").tobytes()),
            output_crc32=zlib.crc32(output.astype("<f8").tobytes()),
        )

    def _score(
        self, query: NDArray[np.float16], hot: Mask
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int, int]:
        """Scores of all tokens, twice: those the step selects by, and those the recall judges.

        The first prefer the host's for hot tokens (unless uniform_score), the second the device's wherever
        it scored, so that they show what the format does. Also returns L, the number of blocks scored and
        the CRC of the device's scores.
        """
        sealed = self._tier.sealed_tokens
        on_host = hot.copy()
        if self._config.uniform_score:
            on_host[:sealed] = False
        cold_in_block = ~on_host[:sealed].reshape(-1, self._tier.block_tokens)
        blocks = np.flatnonzero(cold_in_block.any(axis=1))
        scores = np.empty((len(hot), len(query)), np.int64)
        fraction_bits = np.full(len(query), HOST_FRACTION_BITS, np.int64)
        device_tokens, score_crc32 = np.empty(0, np.int64), 0
        if len(blocks):
            found = self._tier.cold.score(query, blocks, self._config.format.key_format)
            device_tokens, fraction_bits = found.tokens, found.fraction_bits
            scores[device_tokens] = found.scores
            score_crc32 = zlib.crc32(found.scores.astype("<i4").tobytes())
        measured = scores.copy()
        host_tokens = np.flatnonzero(on_host)
        scores[host_tokens] = attention.host_scores(query, self._tier.hot_keys(host_tokens), fraction_bits)
        host_alone = np.setdiff1d(host_tokens, device_tokens, assume_unique=True)
        measured[host_alone] = scores[host_alone]
        return scores, measured, fraction_bits, len(blocks), score_crc32

    def _hot_scores(self, query: NDArray[np.float16], hot: Mask) -> NDArray[np.int64]:
        scores = np.full((len(hot), len(query)), NEVER_SELECTED)
        fraction_bits = np.full(len(query), HOST_FRACTION_BITS, np.int64)
        tokens = np.flatnonzero(hot)
        scores[tokens] = attention.host_scores(query, self._tier.hot_keys(tokens), fraction_bits)
        return scores

    def _decide(self, step: int, selected: TokenIndex, weight: NDArray[np.float64]) -> Mask:
        """Ask the policy for the next step's placement, and hold it to the rules."""
        tokens, sealed = self._tier.tokens, self._tier.sealed_tokens
        seen = Observation(
            step=step,
            tokens=tokens,
            sealed_tokens=sealed,
            capacity_tokens=self._budget.capacity_tokens(tokens + 1, sealed),
            pinned=self._budget.pinned(tokens + 1, sealed),
            hot=self._tier.hot()[:sealed],
            selected=selected,
            weight=weight,
            next_weight=self._next_weight(step + 1) if self._policy.needs_future else None,
        )
        placement = self._policy.place(seen)
        name = f"policy {self._config.policy.name}"
        if not (isinstance(placement, np.ndarray) and placement.dtype == np.bool_):
            raise ValueError(f"{name} placed {type(placement).__name__}; allowed: a bool array")
        if placement.shape != (sealed,):
            raise ValueError(f"{name} placed an array of shape {placement.shape}; allowed: ({sealed},)")
        if placement.sum() > seen.capacity_tokens:
            raise ValueError(f"{name} placed {placement.sum()} tokens; allowed: {seen.capacity_tokens}")
        if not placement[seen.pinned].all():
            raise ValueError(f"{name} left pinned token {np.flatnonzero(seen.pinned & ~placement)[0]} cold")
        return placement

    def _next_weight(self, step: int) -> NDArray[np.float64] | None:
        if step >= self._trace_steps:
            return None
        keys = self._exact_keys[: self._first_position + step + 1]
        weight: NDArray[np.float64] = attention.attention_weights(self._stream.query[:, step], keys).mean(
            axis=1
        )
        return weight
