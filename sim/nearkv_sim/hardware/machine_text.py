"""What `machine_report` gathers, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nearkv_sim.hardware.machine_report import SIZES_BYTES

GB, PS_PER_US, PS_PER_MS = 1e9, 1e6, 1e9
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def text(content: dict[str, Any]) -> str:
    """The same for a terminal."""
    lines = [f"{content['machine']}: {content['description']}", f"source: {content['source']}", ""]
    lines += _table(
        ["tier", "kind", "device", "capacity", "peak GB/s", "times"],
        [
            [
                tier["name"],
                tier["kind"],
                tier["device"],
                size_name(tier["capacity_bytes"]),
                f"{tier['peak_bytes_per_s'] / GB:.1f}",
                tier["times"],
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
    workload, attention, endless = content["workload"], content["attention"], content["endless"]
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
    lines += _step_lines(content["step"])
    lines += _table(["energy of", "J"], [[name, f"{j:.4g}"] for name, j in attention["energy_j"].items()])
    lines += [f"{name}: {celsius} °C decoding without end" for name, celsius in endless["card_c"].items()]
    for tier, years in endless["drive_life_years"].items():
        lines.append(
            f"{tier}: decoding without end, {years['whole blocks']:.3g} years if all KV is written to it in"
            f" blocks, {years['single rows']:.3g} row by row"
        )
    return lines


def _step_lines(step: dict[str, Any]) -> list[str]:
    """The rest of the step, and the kernels of a layer in decode and prefill."""
    lines = [
        f"whole step {step['time_ps'] / PS_PER_MS:.3f} ms: attention"
        f" {step['attention_ps'] / PS_PER_MS:.3f}, the rest {step['rest_ps'] / PS_PER_MS:.3f}, moving weights"
        f" {step['weights_ps'] / PS_PER_MS:.3f}; reading the prompt {step['prefill_ps'] / PS_PER_MS:.3f} ms"
    ]
    prefill = {entry["kernel"]: entry for entry in step["prefill_layer"]}
    decode = {entry["kernel"]: entry for entry in step["decode_layer"]}

    def cells(entry: dict[str, Any] | None) -> list[str]:
        return [f"{entry['time_ps'] / PS_PER_US:.1f}", entry["bound"]] if entry else ["–", "elsewhere"]

    return lines + _table(
        ["kernel of a layer", "decode us", "bound", "prefill us", "bound"],
        [[name, *cells(decode.get(name)), *cells(entry)] for name, entry in prefill.items()],
    )


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
