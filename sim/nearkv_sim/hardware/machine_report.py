"""A machine as plain data: parts, transfers, scans, a decode step, and why each takes so long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nearkv.machine import Timing
from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_attention import AttentionStep
from nearkv_sim.hardware.machine_step import DecodeTime
from nearkv_sim.hardware.machine_units import ScorerUnit
from nearkv_sim.hardware.model_shapes import ModelShape
from nearkv_sim.hardware.roofline_layers import StepTime
from nearkv_sim.hardware.wear import DriveConfig, DriveWear

SIZES_BYTES = tuple(4096 << shift for shift in range(0, 16, 3))  # 4 KiB, 32 KiB, … 128 MiB
BLOCK_PAGE_BYTES = 16 << 10  # a sealed key block of head_dim 128


def describe(machine: ModelMachine) -> dict[str, Any]:
    """Everything that needs no workload."""
    content = machine.description
    tiers = [tier.name for tier in content.tiers]
    return {
        "machine": machine.name,
        "description": content.description,
        "source": content.source,
        "tiers": [
            {
                "name": tier.name,
                "kind": tier.kind.value,
                "device": f"{tier.count} × {tier.profile}",
                "capacity_bytes": tier.capacity_bytes,
                "peak_bytes_per_s": tier.count * machine.memories[tier.name].peak_bytes_per_s,
                "times": machine.memories[tier.name].origin,
            }
            for tier in content.tiers
        ],
        "processors": [
            {
                "name": processor.name,
                "device": f"{processor.count} × {processor.profile}",
                "tier": processor.tier,
                "times": machine.unit(processor.name).origin,
            }
            for processor in content.processors
        ],
        "transfers": [
            {"from": source, "to": target}
            | _sizes([machine.transfer(source, target, n) for n in SIZES_BYTES])
            for source in tiers
            for target in tiers
            if source != target
        ],
        "scans": [
            {"processor": name} | _sizes([machine.scan(name, n) for n in SIZES_BYTES])
            for name in machine.units
        ],
        "cards": _cards(machine),
        "drives": _drives(machine),
        "sources": machine.sources,
    }


def _cards(machine: ModelMachine) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "busy_c": round(unit.thermal.config.steady_c(unit.config.active_power_w), 1),
            "throttle_c": unit.thermal.config.throttle_c,
            "throttles": unit.thermal.config.steady_c(unit.config.active_power_w)
            >= unit.thermal.config.throttle_c,
        }
        for name, unit in machine.units.items()
        if isinstance(unit, ScorerUnit)
    ]


def _drives(machine: ModelMachine) -> list[dict[str, Any]]:
    return [
        {
            "tier": name,
            "rated_host_bytes": drive.rated_host_bytes,
            "nand_budget_bytes": drive.nand_budget_bytes,
        }
        for name, drive in machine.memories.items()
        if isinstance(drive, DriveConfig)
    ]


def describe_step(step: DecodeTime, prompt: StepTime) -> dict[str, Any]:
    """One whole decode step and the pass that reads the prompt, kernel by kernel of one layer."""
    return {
        "time_ps": step.time_ps,
        "attention_ps": step.attention.timing.time_ps,
        "rest_ps": step.rest.time_ps,
        "weights_ps": step.weights_ps,
        "prefill_ps": prompt.time_ps,
        "decode_layer": _layer(step.rest),
        "prefill_layer": _layer(prompt),
    }


def describe_attention(step: AttentionStep) -> dict[str, Any]:
    """Attention of one step."""
    return {
        "time_ps": step.timing.time_ps,
        "why": step.timing.why,
        "kv_bytes": step.timing.nbytes,
        "busy_ps": dict(step.timing.busy_ps),
        "tiers": [
            {
                "tier": share.tier,
                "weight_bytes": share.weight_bytes,
                "kv_bytes": share.kv_bytes,
                "how": share.how,
                "time_ps": share.timing.time_ps if share.timing else 0,
            }
            for share in step.shares
        ],
        "energy_j": {share.component: share.joules for share in step.energy},
    }


def describe_endless(
    machine: ModelMachine, shape: ModelShape, batch: int, step: DecodeTime
) -> dict[str, Any]:
    """What decoding without end, step after whole step, does to cards and to drives that hold KV.

    A drive tier is taken to get every new row: it backs the faster tiers.
    """
    written = shape.kv_bytes_per_token * batch
    row_bytes = 2 * shape.head_dim * shape.bytes_per_value
    holds_kv = {share.tier for share in step.attention.shares if share.kv_bytes}
    life: dict[str, dict[str, float]] = {}
    for tier in machine.description.tiers:
        drive = machine.memories[tier.name]
        if isinstance(drive, DriveConfig) and tier.name in holds_kv:
            blocks, rows = DriveWear(drive), DriveWear(drive)
            blocks.write(-(-written // tier.count), BLOCK_PAGE_BYTES, random=False)
            rows.write(-(-written // tier.count), row_bytes, random=True)
            life[tier.name] = {
                "whole blocks": blocks.projected_life_years(step.time_ps),
                "single rows": rows.projected_life_years(step.time_ps),
            }
    whole = replace(step.attention.timing, time_ps=step.time_ps)
    return {
        "drive_life_years": life,
        "card_c": {
            name: round(unit.steady_c(whole), 1)
            for name, unit in machine.units.items()
            if isinstance(unit, ScorerUnit)
        },
    }


def _sizes(timings: Sequence[Timing]) -> dict[str, Any]:
    return {
        "time_ps": {str(timing.nbytes): timing.time_ps for timing in timings},
        "bytes_per_s": timings[-1].bytes_per_s,
        "why": timings[-1].why,
    }


def _layer(step: StepTime) -> list[dict[str, Any]]:
    return [
        {"kernel": time.kernel.name, "time_ps": time.time_ps, "bound": time.bound} for time in step.kernels
    ]
