"""A machine as plain data and as text: parts, transfers, scans, attention, and why each takes so long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkv.machine import Timing
from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_attention import AttentionStep
from nearkv_sim.hardware.machine_units import ScorerUnit
from nearkv_sim.hardware.model_shapes import ModelShape
from nearkv_sim.hardware.wear import DriveConfig, DriveWear

SIZES_BYTES = tuple(4096 << shift for shift in range(0, 16, 3))  # 4 KiB, 32 KiB, … 128 MiB
BLOCK_PAGE_BYTES = 16 << 10  # a sealed key block of head_dim 128
GB, PS_PER_US, PS_PER_MS = 1e9, 1e6, 1e9
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
                "read_bytes_per_s": tier.count * machine.memories[tier.name].read_bandwidth_bytes_per_s,
                "write_bytes_per_s": tier.count * machine.memories[tier.name].write_bandwidth_bytes_per_s,
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
        "cards": [
            {
                "name": name,
                "busy_c": round(unit.thermal.config.steady_c(unit.config.active_power_w), 1),
                "throttle_c": unit.thermal.config.throttle_c,
                "throttles": unit.thermal.config.steady_c(unit.config.active_power_w)
                >= unit.thermal.config.throttle_c,
            }
            for name, unit in machine.units.items()
            if isinstance(unit, ScorerUnit)
        ],
        "drives": [
            {
                "tier": name,
                "rated_host_bytes": drive.rated_host_bytes,
                "nand_budget_bytes": drive.nand_budget_bytes,
            }
            for name, drive in machine.memories.items()
            if isinstance(drive, DriveConfig)
        ],
        "sources": machine.sources,
    }


def describe_attention(
    machine: ModelMachine, shape: ModelShape, batch: int, step: AttentionStep
) -> dict[str, Any]:
    """Attention of one step; and what decoding at that rate without end does to cards and drives."""
    written = shape.kv_bytes_per_token * batch
    row_bytes = 2 * shape.head_dim * shape.bytes_per_value
    life: dict[str, dict[str, float]] = {}
    for tier in machine.description.tiers:
        drive = machine.memories[tier.name]
        if isinstance(drive, DriveConfig):
            blocks, rows = DriveWear(drive), DriveWear(drive)
            blocks.write(-(-written // tier.count), BLOCK_PAGE_BYTES, random=False)
            rows.write(-(-written // tier.count), row_bytes, random=True)
            time_ps = step.timing.time_ps
            life[tier.name] = {
                "whole blocks": blocks.projected_life_years(time_ps),
                "single rows": rows.projected_life_years(time_ps),
            }
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
        "drive_life_years": life,
        "card_c": {
            name: round(unit.steady_c(step.timing), 1)
            for name, unit in machine.units.items()
            if isinstance(unit, ScorerUnit)
        },
    }


def text(content: dict[str, Any]) -> str:
    """The same for a terminal."""
    lines = [f"{content['machine']}: {content['description']}", f"source: {content['source']}", ""]
    lines += _table(
        ["tier", "kind", "device", "capacity", "read GB/s", "write GB/s"],
        [
            [
                tier["name"],
                tier["kind"],
                tier["device"],
                size_name(tier["capacity_bytes"]),
                f"{tier['read_bytes_per_s'] / GB:.1f}",
                f"{tier['write_bytes_per_s'] / GB:.1f}",
            ]
            for tier in content["tiers"]
        ],
    )
    lines += _table(
        ["processor", "device", "tier", "times"], [list(p.values()) for p in content["processors"]]
    )
    header = [*(f"{size_name(n)}: us" for n in SIZES_BYTES), "GB/s", "busiest"]
    lines += _table(
        ["transfer", *header], [[f"{t['from']} → {t['to']}", *_cells(t)] for t in content["transfers"]]
    )
    lines += _table(["scan", *header], [[scan["processor"], *_cells(scan)] for scan in content["scans"]])
    for card in content["cards"]:
        verdict = "throttles" if card["throttles"] else "does not throttle"
        lines.append(
            f"{card['name']}: {card['busy_c']} °C always busy, limit {card['throttle_c']:g} °C: {verdict}"
        )
    for drive in content["drives"]:
        lines.append(
            f"{drive['tier']}: rated for {drive['rated_host_bytes'] / 1e12:.0f} TB from the host per drive,"
            f" {drive['nand_budget_bytes'] / 1e12:.0f} TB of NAND writes"
        )
    if "attention" in content:
        lines += ["", *_attention_lines(content)]
    recalled = sorted(key for key, source in content["sources"].items() if "unconfirmed" in source)
    if recalled:
        lines += ["", f"recalled, not confirmed against a data sheet: {', '.join(recalled)}"]
    return "\n".join(lines)


def size_name(nbytes: int) -> str:
    """A number of bytes with a binary prefix."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}"


def _attention_lines(content: dict[str, Any]) -> list[str]:
    workload, attention = content["workload"], content["attention"]
    time_ps = attention["time_ps"]
    lines = [
        f"attention of one decode step, {workload['model']}, context {workload['context']}, batch"
        f" {workload['batch']}: {time_ps / PS_PER_MS:.3f} ms, because of {attention['why']}"
    ]
    lines += _table(
        ["tier", "weights", "KV", "ms", "how"],
        [
            [
                tier["tier"],
                size_name(tier["weight_bytes"]),
                size_name(tier["kv_bytes"]),
                f"{tier['time_ps'] / PS_PER_MS:.3f}",
                tier["how"] or "–",
            ]
            for tier in attention["tiers"]
        ],
    )
    lines += _table(
        ["resource", "busy ms", "share"],
        [
            [name, f"{busy / PS_PER_MS:.3f}", f"{busy / time_ps:.1%}"]
            for name, busy in sorted(attention["busy_ps"].items(), key=lambda item: (-item[1], item[0]))
        ],
    )
    lines += _table(["energy of", "J"], [[name, f"{j:.4g}"] for name, j in attention["energy_j"].items()])
    lines += [f"{name}: {celsius} °C decoding without end" for name, celsius in attention["card_c"].items()]
    for tier, years in attention["drive_life_years"].items():
        lines.append(
            f"{tier}: decoding without end, {years['whole blocks']:.3g} years if KV is written in blocks,"
            f" {years['single rows']:.3g} row by row"
        )
    return lines


def _sizes(timings: Sequence[Timing]) -> dict[str, Any]:
    return {
        "time_ps": {str(timing.nbytes): timing.time_ps for timing in timings},
        "bytes_per_s": timings[-1].bytes_per_s,
        "why": timings[-1].why,
    }


def _cells(entry: dict[str, Any]) -> list[str]:
    times = [f"{time_ps / PS_PER_US:.1f}" for time_ps in entry["time_ps"].values()]
    return [*times, f"{entry['bytes_per_s'] / GB:.2f}", entry["why"]]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns and an empty line."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        *("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines),
        "",
    ]
