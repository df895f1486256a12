"""Tables of the PIM designs for the documents, from the same figures as `nearkv designs`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.design_figures import figures, make_job
from nearkv_sim.synthesis.pim import computed_totals
from nearkv_sim.synthesis.pim_budgets import PIM_BUDGETS, TINY_PIM_RTL
from nearkv_sim.synthesis.pim_report import PIM_COLUMNS, component_rows


class DesignTable(NamedTuple):
    """A table with the sentences above it."""

    caption: str
    header: list[str]
    rows: list[list[object]]


def _netlist_against_sum() -> str:
    """What the one device that is synthesised whole says of the computed sums."""
    computed, _ = computed_totals(PIM_DESIGNS["tiny_pim"], PIM_BUDGETS["tiny_pim"])
    luts, flip_flops = (
        f"{getattr(TINY_PIM_RTL, name):,} {label} (computed {getattr(computed, name):,},"
        f" {100 * (getattr(computed, name) / getattr(TINY_PIM_RTL, name) - 1):+.2f} %)"
        for name, label in (("luts", "LUT"), ("flip_flops", "FF"))
    )
    return (
        f"The RTL of `tiny_pim` synthesised whole takes {luts},\n{flip_flops}, {TINY_PIM_RTL.dsps:g} DSP and"
        f" {TINY_PIM_RTL.carries:g} carries; the other devices' sums are not checked."
    )


def pim_tables() -> Iterator[DesignTable]:
    """Parameters, cycles of the default job, components, and the paper's figures."""
    content = {name: figures(design, make_job(design)) for name, design in PIM_DESIGNS.items()}
    yield DesignTable(
        "Units of a device, and how many of them `nearkv rtl` instantiates with every reduction level above.",
        ["design", "clock, MHz", "units", "in RTL", "FP16 lanes", "head_dim", "tokens per unit", "fan-ins"],
        [
            [
                f"`{name}`",
                *(entry[key] for key in ("clock_mhz", "units", "instantiated_units", "lanes", "head_dim")),
                entry["block_tokens"],
                " · ".join(map(str, entry["fan_ins"])),
            ]
            for name, entry in content.items()
        ],
    )
    yield DesignTable(
        "Attention of several heads back to back at that clock, with full-rate streams (`nearkv designs NAME"
        " --tokens … --heads …`).\nThe formula equals the RTL's cycles; memory timing is not part of it,"
        " and an exact merge's maximum\nis taken to come down a level per cycle. Latencies in cycles: last"
        " key beat to logit, ACCUMULATE to its first value\nbeat, reduction and division.",
        ["design", "tokens", "heads", "latencies"]
        + [f"{merge.name.lower()} merge: {what}" for merge in Merge for what in ("cycles", "µs")],
        [
            [
                f"`{name}`",
                entry["job"]["tokens"],
                entry["job"]["heads"],
                " / ".join(map(str, entry["latency_cycles"].values())),
                *(
                    entry[f"attention_{merge.name.lower()}_merge"][unit]
                    for merge in Merge
                    for unit in ("cycles", "us")
                ),
            ]
            for name, entry in content.items()
        ],
    )
    yield DesignTable(
        "UltraScale+ cells of every component, accepted figures (`make synth`), and sums computed from them."
        " They count logic\nthat is meant for a memory die or its controller: they compare designs, and say"
        f" nothing about areas in mm².\n{_netlist_against_sum()}",
        ["design", "component", *PIM_COLUMNS],
        [
            [f"`{name}`", *row]
            for name, design in PIM_DESIGNS.items()
            for row in component_rows(design, PIM_BUDGETS[name])
        ],
    )
    yield DesignTable(
        "For context, what the paper states (PAM, arXiv 2602.11521), beside the peak of all lanes and the"
        " bytes a unit of ours stores.",
        [
            *("design", "unit buffer, bytes", "ours, bytes", "unit, mm²", "reduction unit, mm²"),
            *("device, mm²", "GFLOPS under its power cap", "peak of all lanes, GFLOPS"),
        ],
        [
            [
                f"`{name}`",
                published.buffer_bytes,
                sum(content[name]["unit_bytes"].values()),
                *(
                    "–" if area is None else area
                    for area in (
                        published.unit_area_mm2,
                        published.reduction_unit_area_mm2,
                        published.device_area_mm2,
                    )
                ),
                f"{published.gflops:,.0f}",
                f"{content[name]['peak_gflops']:,.0f}",
            ]
            for name, design in PIM_DESIGNS.items()
            if (published := design.published) is not None
        ],
    )
