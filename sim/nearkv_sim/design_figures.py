"""What follows from a named design: sizes, latencies, cycles of a job, area. The documents print the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.scorer_pipeline import OUTPUT_QUEUE_RANKS, pipeline_ranks
from nearkv_hdl.spec.topk_config import TOPK_DESIGNS
from nearkv_sim.golden.reduction_timing import (
    accumulate_cycles,
    attention_timing,
    reduction_latency,
    score_latency,
)
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.golden.topk_timing import TopKTiming
from nearkv_sim.synthesis.budgets import BUDGETS
from nearkv_sim.synthesis.pim import computed_totals
from nearkv_sim.synthesis.pim_budgets import PIM_BUDGETS

MHZ = 1_000_000
DEFAULT_TOKENS = 4096
DEFAULT_HEADS = 8
MAX_HEADS = 1024
MAX_BLOCKS = 1 << 20  # key blocks over all passes: the cycles are counted block by block
SELECTED_SHARE = 10  # one token in ten is selected, the runtime's default
Figures = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Attention heads over one context.

    Args:
        tokens: of the context; a scorer takes whole key blocks, a PIM device what its units can hold.
        head_dim: one that the design works on.
        heads: query heads, on a scorer of one KV head: its query group's share them key by key.

    Raises ValueError for a value below 1, or more than MAX_HEADS.

    """

    tokens: int
    head_dim: int
    heads: int

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("tokens", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: from 1")
        if self.heads > MAX_HEADS:
            raise ValueError(f"heads is {self.heads}; allowed: 1 to {MAX_HEADS}")


def make_job(
    design: DesignConfig | PimDesign,
    *,
    tokens: int | None = None,
    head_dim: int | None = None,
    heads: int | None = None,
) -> Job:
    """A job that a design can run; what is None gets a default. ValueError for one that it cannot."""
    if isinstance(design, PimDesign):
        job = Job(
            min(DEFAULT_TOKENS, design.tokens) if tokens is None else tokens,
            design.head_dim if head_dim is None else head_dim,
            DEFAULT_HEADS if heads is None else heads,
        )
        if job.head_dim != design.head_dim:
            raise ValueError(f"head_dim is {job.head_dim}; design {design.name} allows: {design.head_dim}")
        if job.tokens > design.tokens:
            raise ValueError(
                f"tokens is {job.tokens}; design {design.name} allows: 1 to {design.tokens},"
                f" {design.block_tokens} in each of its {design.units} units"
            )
        return job
    job = Job(
        DEFAULT_TOKENS if tokens is None else tokens,
        design.head_dims[-1] if head_dim is None else head_dim,
        DEFAULT_HEADS if heads is None else heads,
    )
    design.check_head_dim(job.head_dim)
    if job.tokens % design.block_tokens:
        raise ValueError(
            f"tokens is {job.tokens}; design {design.name} allows: multiples of {design.block_tokens}, since"
            " keys are scored by the block"
        )
    most = MAX_BLOCKS // _passes(design, job) * design.block_tokens
    if job.tokens > most:
        raise ValueError(f"tokens is {job.tokens}; allowed: up to {most} with {job.heads} heads")
    return job


def _passes(design: DesignConfig, job: Job) -> int:
    """Passes over the keys: a query group shares one."""
    return -(-job.heads // design.query_group)


def overview(design: DesignConfig | PimDesign) -> Figures:
    """Parameters of a design."""
    if isinstance(design, PimDesign):
        return {
            "name": design.name,
            "kind": "PIM device",
            "clock_mhz": design.clock_hz // MHZ,
            "units": design.units,
            "instantiated_units": design.rtl_units,
            "lanes": design.lanes,
            "head_dim": design.head_dim,
            "block_tokens": design.block_tokens,
            "fan_ins": list(design.fan_ins),
        }
    return {
        "name": design.name,
        "kind": "scorer",
        "clock_mhz": design.clock_hz // MHZ,
        "part": design.device.part,
        "bus_bytes": design.bus_bytes,
        "key_masters": design.key_masters,
        "lanes": design.lanes,
        "query_group": design.query_group,
        "query_bits": design.query_bits,
        "head_dims": list(design.head_dims),
        "block_tokens": design.block_tokens,
    }


def figures(design: DesignConfig | PimDesign, job: Job) -> Figures:
    """Everything that follows from a design, and the cycles of a job at full-rate streams."""
    own = _pim_figures(design, job) if isinstance(design, PimDesign) else _scorer_figures(design, job)
    return overview(design) | own


def _scorer_figures(design: DesignConfig, job: Job) -> Figures:
    content: Figures = {
        "multipliers": design.macs,
        "bus_bytes_per_second": design.bus_bytes * design.clock_hz,
        "formats": {
            name: getattr(design, name).name for name in ("query_code", "product", "lane_sum", "dot")
        },
    }
    for head_dim in design.head_dims:
        content[f"head_dim_{head_dim}"] = {
            "block_bytes": design.layout(head_dim).block_bytes,
            "lane_beats_per_token": design.lane_beats_per_token(head_dim),
            "lane_beats_per_block": design.lane_beats_per_block(head_dim),
            "bus_beats_int8": design.bus_beats(head_dim, KeyFormat.INT8),
            "bus_beats_int4": design.bus_beats(head_dim, KeyFormat.INT4),
        }
    passes = _passes(design, job)
    blocks = passes * (job.tokens // design.block_tokens)
    content |= {
        "latency_cycles": {"last_lane_beat_to_score": pipeline_ranks(design) + OUTPUT_QUEUE_RANKS},
        "job": asdict(job),
    }
    for key_format in KeyFormat:
        cycles = job_cycles(design, [job.head_dim] * blocks, [key_format] * blocks)
        name = f"scoring_{key_format.name.lower()}"
        content[name] = {"passes": passes, **_time(cycles, design.clock_hz)}
    selection = TOPK_DESIGNS[design.name]
    if job.tokens <= selection.capacity:
        count = max(1, job.tokens // SELECTED_SHARE)
        cycles = TopKTiming(selection).worst_case_cycles(job.tokens, count)
        content["selection_of_a_head"] = {"selected": count, **_time(cycles, design.clock_hz, "at_most_")}
    else:
        content["selection_of_a_head"] = {"at_most_tokens": selection.capacity}
    return content | {"area": asdict(BUDGETS[design.name])}


def _pim_figures(design: PimDesign, job: Job) -> Figures:
    levels = zip(design.levels, design.reduction_units, strict=True)
    content: Figures = {
        "reduction_units": {level.name: count for level, count in levels},
        "peak_gflops": design.peak_flops / 1e9,
        "unit_bytes": {
            "query": design.query_bytes,
            "sums": design.accumulator_bytes,
            "scores": design.score_bytes,
        },
        "latency_cycles": {
            "last_key_beat_to_logit": score_latency(design),
            "accumulate_to_first_value_beat": accumulate_cycles(design),
            "reduction_and_division": reduction_latency(design),
        },
        "job": {**asdict(job), "unit_tokens": -(-job.tokens // design.units)},
    }
    for merge in Merge:
        timing = attention_timing(design, job.tokens, job.heads, merge)
        content[f"attention_{merge.name.lower()}_merge"] = {
            **_time(timing.cycles, design.clock_hz),
            "reduction_percent": round(100 * timing.exposed_share, 2),
        }
    used = PIM_BUDGETS[design.name]
    for name, resources in used.items():
        content[f"area_{name.replace(' ', '_')}"] = asdict(resources)
    rtl, device = computed_totals(design, used)
    content |= {"area_rtl_computed": asdict(rtl), "area_device_computed": asdict(device)}
    if design.published is not None:
        content["published"] = asdict(design.published)
    return content


def _time(cycles: int, clock_hz: int, prefix: str = "") -> Figures:
    """Cycles, and microseconds at the design's clock."""
    return {f"{prefix}cycles": cycles, f"{prefix}us": round(cycles / clock_hz * 1e6, 3)}
