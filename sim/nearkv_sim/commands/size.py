"""`nearkv size`: what a model's KV cache needs, and which split over a machine's tiers holds it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nearkv.command import Command, columns
from nearkv_sim.hardware.machine import machine_names, open_machine
from nearkv_sim.hardware.machine_text import size_name
from nearkv_sim.hardware.model_shapes import model_names, named_model
from nearkv_sim.sizing import cache_size, tier_split


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help=f"one of {', '.join(model_names())}")
    parser.add_argument(
        "--context", type=int, metavar="TOKENS", help="per sequence; default: the model's longest"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences; default: 1")
    parser.add_argument(
        "--machine", help=f"split over its tiers: one of {', '.join(machine_names())}, or a YAML file"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table", help="of standard output")


def _run(args: argparse.Namespace) -> int:
    shape = named_model(args.model).config
    context = shape.max_context_tokens if args.context is None else args.context
    content: dict[str, Any] = {"model": args.model, "context": context, "batch": args.batch}
    content |= {"dtype": shape.dtype, "published_context": shape.max_context_tokens}
    content |= cache_size(shape, context, args.batch)
    if args.machine is not None:
        content["split"] = tier_split(open_machine(args.machine), shape, context, args.batch)
    print(json.dumps(content, indent=2) if args.format == "json" else _text(content))
    return 0


def _text(content: dict[str, Any]) -> str:
    rows = [
        ["KV cache", size_name(content["kv_bytes"])],
        ["of one token", size_name(content["kv_bytes_per_token"])],
    ]
    if content["query_heads_per_kv_head"] > 1:
        label = f"if its groups of {content['query_heads_per_kv_head']} query heads did not share KV"
        rows.append([label, size_name(content["kv_bytes_if_heads_not_shared"])])
    rows += [
        ["weights", size_name(content["weight_bytes"])],
        ["hit-rate table", size_name(content["hit_rate_table_bytes"])],
    ]
    blocks = content["key_blocks"]
    if blocks is not None:
        rows += [
            ["key codes on the device", size_name(blocks["plane_bytes"])],
            [f"tables of {blocks['blocks']} key blocks", size_name(blocks["table_bytes"])],
        ]
    lines = [f"{content['model']}, {content['context']} tokens, batch {content['batch']}, {content['dtype']}"]
    lines += columns(rows)
    if blocks is None:
        lines.append("no key codes: the scorer does not take this head_dim")
    if content["context"] > content["published_context"]:
        lines.append(f"beyond the {content['published_context']} tokens that the model was published with")
    return "\n".join([*lines, *_split_lines(content.get("split"))])


def _split_lines(split: dict[str, Any] | None) -> list[str]:
    if split is None:
        return []
    rows = [["tier", "capacity", "weights", "KV", "of the KV"]]
    rows += [
        [
            tier["tier"],
            *(size_name(tier[name]) for name in ("capacity_bytes", "weight_bytes", "kv_bytes")),
            f"{tier['kv_share']:.1%}",
        ]
        for tier in split["tiers"]
    ]
    verdict = f"{split['machine']} holds it"
    if not split["fits"]:
        left = (
            f"{size_name(split['weight_bytes_left'])} of weights, {size_name(split['kv_bytes_left'])} of KV"
        )
        verdict = f"{split['machine']} does not hold it: {left} have no place"
    limits = (
        f"longest context at this batch {split['longest_context_tokens']} tokens,"
        f" largest batch at this context {split['largest_batch']}"
    )
    return ["", *columns(rows), verdict, limits]


COMMAND = Command("tell what a model's KV cache needs and how a machine's tiers hold it", _configure, _run)
