"""What a run reports: one record per decode step and stream, and the whole run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from nearkv.experiments.config import ExperimentConfig

TIME_SUFFIX = "_ps"  # fields that may differ between transports, and only these


@dataclass(frozen=True)
class StepRecord:
    """One decode step of one stream.

    Attributes:
        step: from 0.
        position: index of the token whose query it is; tokens 0 … position are in context.
        stream: name such as `L12.H0`.
        hot_tokens: tokens with rows on the host during the step, tail included.
        sealed_tokens: tokens in the cold store during the step.
        selected_tokens: ceil(select_fraction · context), with hot_only at most what is hot, and where query
            heads select by themselves all that any of them selected: the accesses the policy is told of.
        attended_tokens: tokens the output was computed over: the selected ones, with hot_only all hot ones.
        hit_rate: share of the tokens selected for each head that were hot; with hot_only, of the
            ceil(select_fraction · context) tokens of largest true attention (heads merged after
            normalisation).
        mass_kept: true attention (float64 over all tokens) on the attended tokens, mean over query heads.
        output_error: relative L2 error of the output against full attention.
        recall: per query head, share of its true top select_fraction that the scores place there.
        scored_blocks: key blocks the device scored.
        fetched_tokens: selected tokens that were not hot: rows read for this step.
        promoted_tokens: tokens that became hot after the step.
        promotion_read_tokens: those of them whose rows had not been fetched anyway.
        demoted_tokens: tokens that lost their hot copy after the step.
        to_device_bytes: payload to the device in this step: descriptors, queries, sealed blocks, registers.
        from_device_bytes: payload from the device: scores, rows, registers.
        device_cycles: clock cycles of the scoring jobs.
        score_time_ps: simulated time of the scoring job.
        fetch_time_ps: of reading missing rows.
        seal_time_ps: of writing a block that became full.
        promote_time_ps: of reading promoted rows.
        score_crc32: CRC-32 of the device's scores, int32 little-endian.
        selection_crc32: CRC-32 of the selected token indices, int64 little-endian.
        output_crc32: CRC-32 of the attention output, float64 little-endian.

    """

    step: int
    position: int
    stream: str
    hot_tokens: int
    sealed_tokens: int
    selected_tokens: int
    attended_tokens: int
    hit_rate: float
    mass_kept: float
    output_error: float
    recall: tuple[float, ...]
    scored_blocks: int
    fetched_tokens: int
    promoted_tokens: int
    promotion_read_tokens: int
    demoted_tokens: int
    to_device_bytes: int
    from_device_bytes: int
    device_cycles: int
    score_time_ps: int
    fetch_time_ps: int
    seal_time_ps: int
    promote_time_ps: int
    score_crc32: int
    selection_crc32: int
    output_crc32: int

    @property
    def time_ps(self) -> int:
        """Simulated time of the step: the serial sum of its parts."""
        return self.score_time_ps + self.fetch_time_ps + self.seal_time_ps + self.promote_time_ps

    def flat(self) -> dict[str, Any]:
        """Every field by name, recall as one field per query head, and time_ps."""
        content = dataclasses.asdict(self)
        for head, value in enumerate(content.pop("recall")):
            content[f"recall_head_{head}"] = value
        return content | {"time_ps": self.time_ps}


@dataclass(frozen=True)
class Prefill:
    """Sealing of everything before the first decode step, all streams together."""

    sealed_tokens: int
    to_device_bytes: int
    from_device_bytes: int
    time_ps: int


@dataclass(frozen=True)
class RunResult:
    """A finished or interrupted run; `records` are ordered by step, then stream."""

    config: ExperimentConfig
    trace_sha256: str
    streams: tuple[str, ...]
    planned_steps: int
    prefill: Prefill
    records: tuple[StepRecord, ...]

    @property
    def steps(self) -> int:
        """Decode steps that every stream has finished."""
        return len(self.records) // len(self.streams)

    @property
    def complete(self) -> bool:
        """Whether no step is missing."""
        return self.steps == self.planned_steps

    def of_stream(self, name: str) -> list[StepRecord]:
        """The records of one stream."""
        return [record for record in self.records if record.stream == name]
