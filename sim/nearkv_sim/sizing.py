"""What a KV cache needs, in bytes, and which split over a machine's tiers holds it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from nearkv_hdl.spec.layout import BLOCK_TOKENS, HEAD_DIMS, KeyBlockLayout
from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_fill import MachineFill, fill_tiers
from nearkv_sim.hardware.model_shapes import ModelShape

HIT_RATE_BYTES = 2  # per token and KV head: HillInfer's table (arXiv 2602.18750), `nearkv.policy.hill`


def cache_size(shape: ModelShape, context_tokens: int, batch: int) -> dict[str, Any]:
    """Bytes of a model's KV cache and of what tiering adds to it.

    KV cache: 2 · layers · kv_heads · head_dim · bytes_per_value per token; a model with as many KV heads as
    query heads would need `kv_bytes_if_heads_not_shared`. Key blocks hold BLOCK_TOKENS tokens each; the rest
    of a sequence is its unsealed tail, which has rows only.

    Args:
        shape: the model.
        context_tokens: tokens of every sequence.
        batch: sequences.

    Returns:
        Plain data; `key_blocks` is None where the scorer does not take the model's head_dim.

    Raises:
        ValueError: a context or batch below 1.

    """
    total = shape.kv_bytes(context_tokens, batch)
    streams = shape.layers * shape.kv_heads * batch
    return {
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "kv_bytes": total,
        "query_heads_per_kv_head": shape.query_heads // shape.kv_heads,
        "kv_bytes_if_heads_not_shared": total * shape.query_heads // shape.kv_heads,
        "weight_bytes": shape.weight_bytes,
        "hit_rate_table_bytes": HIT_RATE_BYTES * streams * context_tokens,
        "key_blocks": _key_blocks(shape.head_dim, context_tokens, streams),
    }


def _key_blocks(head_dim: int, context_tokens: int, streams: int) -> dict[str, int] | None:
    if head_dim not in HEAD_DIMS:
        return None
    layout = KeyBlockLayout(head_dim)
    blocks = context_tokens // BLOCK_TOKENS * streams
    return {
        "blocks": blocks,
        "plane_bytes": blocks * layout.block_bytes,
        "table_bytes": blocks * layout.channel_table_bytes,
        "tail_tokens": context_tokens % BLOCK_TOKENS,
    }


def tier_split(machine: ModelMachine, shape: ModelShape, context_tokens: int, batch: int) -> dict[str, Any]:
    """How a machine's tiers share weights and cache, and the longest context and largest batch they hold.

    `longest_context_tokens` keeps the batch, `largest_batch` the context; they are 0 where not even one
    token, or sequence, has room. ValueError as `cache_size`.
    """
    filled = fill_tiers(machine.description, shape.weight_bytes, shape.kv_bytes(context_tokens, batch))
    room = 0 if filled.weight_bytes_left else filled.kv_room_bytes
    per_sequence = shape.kv_bytes(context_tokens, 1)
    return {
        "machine": machine.name,
        "fits": filled.fits,
        "tiers": _tiers(machine, filled),
        "weight_bytes_left": filled.weight_bytes_left,
        "kv_bytes_left": filled.kv_bytes_left,
        "longest_context_tokens": room // (shape.kv_bytes_per_token * batch),
        "largest_batch": room // per_sequence,
    }


def _tiers(machine: ModelMachine, filled: MachineFill) -> list[dict[str, Any]]:
    total = sum(tier.kv_bytes for tier in filled.tiers) + filled.kv_bytes_left
    return [
        {
            "tier": tier.tier,
            "capacity_bytes": machine.description.tier(tier.tier).capacity_bytes,
            "weight_bytes": tier.weight_bytes,
            "kv_bytes": tier.kv_bytes,
            "kv_share": float(Fraction(tier.kv_bytes, total)),
        }
        for tier in filled.tiers
    ]
