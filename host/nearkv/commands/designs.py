"""`nearkv designs`: the named designs, or one with everything that follows from it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nearkv.command import Command
from nearkv.experiments.summary import columns
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, get_design
from nearkv_hdl.spec.layout import KeyFormat

MHZ = 1_000_000


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one only, with derived figures")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")


def _run(args: argparse.Namespace) -> int:
    if args.name is None:
        rows = [_overview(design) for design in DESIGNS.values()]
        if args.format == "json":
            print(json.dumps(rows, indent=2))
        else:
            cells = [[_cell(value) for value in row.values()] for row in rows]
            print("\n".join(columns([list(rows[0]), *cells])))
        return 0
    content = _overview(design := get_design(args.name)) | _derived(design)
    if args.format == "json":
        print(json.dumps(content, indent=2))
    else:
        width = max(map(len, content))
        print("\n".join(f"{key.ljust(width)}  {_cell(value)}" for key, value in content.items()))
    return 0


def _overview(design: DesignConfig) -> dict[str, Any]:
    return {
        "name": design.name,
        "part": design.device.part,
        "clock_mhz": design.clock_hz // MHZ,
        "bus_bytes": design.bus_bytes,
        "lanes": design.lanes,
        "query_group": design.query_group,
        "query_bits": design.query_bits,
        "head_dims": list(design.head_dims),
        "block_tokens": design.block_tokens,
        "variant": design.mac_variant.value,
    }


def _derived(design: DesignConfig) -> dict[str, Any]:
    content: dict[str, Any] = {
        "multipliers": design.macs,
        "dsp_blocks": design.dsp_blocks,
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
    return content


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


COMMAND = Command("list the named scorer designs", _configure, _run)
