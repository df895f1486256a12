"""One stream's decode steps: score, select, fetch, attend, seal, place; and what each of them cost."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nearkv.device.transport import TransportCounters
from nearkv.experiments import attention
from nearkv.experiments.config import ExperimentConfig, Selection
from nearkv.experiments.records import StepRecord
from nearkv.experiments.scoring import StepScores, score_all, score_hot
from nearkv.experiments.selection import ChosenMask, merits
from nearkv.kvcache.budget import HotBudget, share_ceil
from nearkv.kvcache.stream import ColdTier, TieredStream
from nearkv.policy.base import PREFILL_STEP, Mask, Observation, StreamInfo, TokenIndex
from nearkv.policy.future import FutureAccesses
from nearkv.policy.registry import build_policy, describe
from nearkv.trace.format import AttentionTrace, HeadStream
from nearkv_hdl.spec.block_header import StreamIdentity


class Device(Protocol):
    """What a run needs of an opened device."""

    @property
    def now_ps(self) -> int:
        """Simulated time."""

    @property
    def counters(self) -> TransportCounters:
        """Totals since it was opened."""

    def open_stream(self, name: str, head_dim: int, identity: StreamIdentity) -> ColdTier:
        """Start an empty stream of the cold store, whose blocks say that they are `identity`'s."""


def stream_identity(trace: AttentionTrace, stream: HeadStream) -> StreamIdentity:
    """What block headers say of a stream: sequence 0 of the model that the digest's first 32 bits number."""
    _, _, digest = trace.header.model.digest.partition(":")
    return StreamIdentity(model=int(digest[:8], 16), layer=stream.layer, kv_head=stream.kv_head)


class Meter:
    """Splits a device's time and traffic into intervals."""

    def __init__(self, device: Device) -> None:
        """Start the first interval."""
        self._device = device
        self.start()

    def start(self) -> None:
        """Start afresh, forgetting what happened since the last interval."""
        self._time_ps = self._device.now_ps
        self._counters = self._device.counters

    def lap_ps(self) -> int:
        """Time since the last call, or the start."""
        before, self._time_ps = self._time_ps, self._device.now_ps
        return self._time_ps - before

    def pause(self) -> None:
        """Leave out what happens until `resume`, traffic and time."""
        self._gained = self.traffic()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._time_ps = self._device.now_ps
        self._counters = self._device.counters - self._gained

    def traffic(self) -> TransportCounters:
        """What the counters have gained since the start, pauses left out."""
        return self._device.counters - self._counters


@dataclass(frozen=True)
class StartedStep:
    """A step between scoring and selection.

    Attributes:
        step: from 0.
        tokens, sealed_tokens: in context, the step's own included, and in the cold store.
        hot: bool [tokens].
        scored: the scores.
        merit: float64 [tokens, heads], what is selected by.
        exact_logits, exact: float64 [tokens, heads], true logits and attention.
        score_ps: simulated time of scoring.

    """

    step: int
    tokens: int
    sealed_tokens: int
    hot: Mask
    scored: StepScores
    merit: NDArray[np.float64]
    exact_logits: NDArray[np.float64]
    exact: NDArray[np.float64]
    score_ps: int


class StreamRun:
    """Replays one stream of a trace on a tiered cache.

    A step appends its token and scores; once it is known what is selected, it reads the rows it attends,
    seals a full tail, and lets the policy place the sealed tokens for the next step.
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
            device.open_stream(stream.name, trace.head_dim, stream_identity(trace, stream)),
            trace.head_dim,
            max_tokens,
            config.design_config.block_tokens,
        )
        self._meter = Meter(device)
        self._observed_sealed_tokens = 0
        self.max_trace_tokens = trace.first_query_position + trace.steps
        self.future: FutureAccesses | None = None  # to be set before the prefill if `needs_future`

    @property
    def layer(self) -> int:
        """Layer of the stream."""
        return self._stream.layer

    @property
    def needs_future(self) -> bool:
        """Whether the policy is one that knows what comes."""
        return self._policy.needs_future

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

    def begin(self, step: int) -> StartedStep:
        """Append the step's token and score the context."""
        config, tier = self._config, self._tier
        position = self._first_position + step
        row = slice(position, position + 1)
        tier.append(self._stream.key[row], self._stream.value[row])
        query = self._stream.query[:, step]
        hot, sealed_tokens = tier.hot(), tier.sealed_tokens
        exact_logits = attention.logits(query, self._exact_keys[: tier.tokens])
        exact = attention.softmax(exact_logits)
        self._meter.start()
        if config.selection is Selection.SCORE_ALL:
            scored = score_all(tier, query, hot, config.format.key_format, config.uniform_score)
            merit = merits(scored, config.head_merge)
        else:
            scored = score_hot(tier, query, hot)
            # Nothing scores the cold tokens, so the hit rate is that of the set exact scores would want.
            merit = exact
        score_ps = self._meter.lap_ps()
        self._meter.pause()
        return StartedStep(
            step, tier.tokens, sealed_tokens, hot, scored, merit, exact_logits, exact, score_ps
        )

    def finish(self, started: StartedStep, chosen: ChosenMask) -> StepRecord:
        """Attend the tokens that each query head is to attend, seal, and place for the next step.

        Args:
            started: what `begin` returned.
            chosen: bool [tokens, heads]: the heads' selection; with hot_only the one exact scores would make.

        """
        config, tier, step, hot = self._config, self._tier, started.step, started.hot
        query = self._stream.query[:, step]
        attends = chosen
        if config.selection is Selection.HOT_ONLY:
            attends = np.repeat(hot[:, None], len(query), axis=1)
        attended = np.flatnonzero(attends.any(axis=1))
        count = share_ceil(config.select_fraction, tier.tokens)
        self._meter.resume()
        keys, values = tier.read(attended)
        fetch_ps = self._meter.lap_ps()
        weights = attention.masked_weights(query, keys, attends[attended])
        output = attention.attend(weights, values)
        selected, selected_weight = attended, weights.mean(axis=1)
        if config.selection is Selection.HOT_ONLY:
            best = attention.select(weights, min(count, len(attended)))
            selected, selected_weight = attended[best], selected_weight[best]
        tier.seal_full_blocks()
        seal_ps = self._meter.lap_ps()
        moves = tier.place(self._decide(step, selected, selected_weight))
        promote_ps = self._meter.lap_ps()
        traffic = self._meter.traffic()
        exact_output = attention.attend(started.exact, self._exact_values[: started.tokens])
        return StepRecord(
            step=step,
            position=started.tokens - 1,
            stream=self._stream.name,
            hot_tokens=int(hot.sum()),
            sealed_tokens=started.sealed_tokens,
            selected_tokens=len(selected),
            attended_tokens=len(attended),
            hit_rate=float((chosen & hot[:, None]).sum() / chosen.sum()),
            mass_kept=float(np.where(attends, started.exact, 0).sum(axis=0).mean()),
            output_error=attention.relative_error(output, exact_output),
            recall=tuple(attention.recall(started.scored.measured, started.exact_logits, count).tolist()),
            scored_blocks=started.scored.blocks,
            fetched_tokens=int((~hot[attended]).sum()),
            promoted_tokens=moves.promoted_tokens,
            promotion_read_tokens=moves.promotion_read_tokens,
            demoted_tokens=moves.demoted_tokens,
            to_device_bytes=traffic.payload_bytes_to_device,
            from_device_bytes=traffic.payload_bytes_from_device,
            device_cycles=traffic.device_cycles,
            score_time_ps=started.score_ps,
            fetch_time_ps=fetch_ps,
            seal_time_ps=seal_ps,
            promote_time_ps=promote_ps,
            score_crc32=started.scored.device_crc32,
            selection_crc32=zlib.crc32(selected.astype("<i8").tobytes()),
            output_crc32=zlib.crc32(output.astype("<f8").tobytes()),
        )

    def _decide(self, step: int, selected: TokenIndex, weight: NDArray[np.float64]) -> Mask:
        """Ask the policy for the next step's placement, and hold it to the rules."""
        tokens, sealed = self._tier.tokens, self._tier.sealed_tokens
        newly_sealed = slice(self._observed_sealed_tokens, sealed)
        self._observed_sealed_tokens = sealed
        needs_keys, needs_scoring = self._policy.needs_keys, self._policy.needs_scoring
        sees_query = (needs_keys or needs_scoring) and step != PREFILL_STEP
        seen = Observation(
            step=step,
            tokens=tokens,
            sealed_tokens=sealed,
            capacity_tokens=self._budget.capacity_tokens(tokens + 1, sealed),
            pinned=self._budget.pinned(tokens + 1, sealed),
            hot=self._tier.hot()[:sealed],
            selected=selected,
            weight=weight,
            query=self._stream.query[:, step] if sees_query else None,
            new_keys=self._stream.key[newly_sealed] if needs_keys else None,
            score=self._score_sealed if needs_scoring else None,
            next_weight=None if self.future is None else self._next_weight(step + 1),
            next_use=None if self.future is None else self.future.after(step)[:sealed],
        )
        name = self._config.policy.name
        try:
            placement = self._policy.place(seen)
        except (Exception, SystemExit) as error:  # a user's own code may raise anything
            raise ValueError(f"policy {name}: place() raised {describe(error)}") from error
        try:
            return seen.check(placement)
        except ValueError as error:
            raise ValueError(f"policy {name}: {error}") from error

    def _score_sealed(self, query: NDArray[np.float32]) -> NDArray[np.float64]:
        """Attention of a policy's own query over the sealed tokens: a pass of the device over all blocks."""
        blocks = np.arange(self._tier.sealed_tokens // self._tier.block_tokens)
        if not len(blocks):
            return np.empty(0)
        key_format = self._config.format.key_format
        found = self._tier.cold.score(query.astype(np.float16), blocks, key_format)
        weights = attention.score_weights(found.scores.astype(np.int64), found.fraction_bits)
        return np.asarray(weights.mean(axis=1))

    def _next_weight(self, step: int) -> NDArray[np.float64] | None:
        return None if step >= self._trace_steps else self.exact_weights(step).mean(axis=1)

    def exact_weights(self, step: int) -> NDArray[np.float64]:
        """True attention of a step of the trace, float64 [tokens, heads]."""
        keys = self._exact_keys[: self._first_position + step + 1]
        return attention.attention_weights(self._stream.query[:, step], keys)
