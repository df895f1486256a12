"""Speed of the exact golden scorer beside plain float32 `K @ q` of the same shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.registry import Table
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.golden.scorer import ScorerModel

_DESIGN = "smartssd_ku15p"
_BLOCKS = 256  # 32,768 keys
_REPEATS = 20


def measure() -> Table:
    """Codes are kept in the golden model's float type, as the runtime keeps them between steps."""
    design = get_design(_DESIGN)
    model = ScorerModel(design)
    rng = np.random.default_rng(1)
    heads, tokens = design.query_group, design.block_tokens
    rows = []
    for head_dim in design.head_dims:
        codes = rng.integers(-128, 128, (_BLOCKS, tokens, head_dim)).astype(np.int8)
        query_codes = rng.integers(-127, 128, (_BLOCKS, heads, head_dim)).astype(np.int16)
        shift = rng.integers(0, 8, (_BLOCKS, heads))
        bias = rng.integers(-(1 << 20), 1 << 20, (_BLOCKS, heads))
        kept = codes.astype(model.exact_dtype(head_dim))
        keys = codes.reshape(-1, head_dim).astype(np.float32)
        query = rng.standard_normal((head_dim, heads)).astype(np.float32)
        # In turns, so that other load on the machine meets both.
        plain, golden = _best_seconds(
            lambda keys=keys, query=query: keys @ query,
            lambda kept=kept, operands=(query_codes, shift, bias): model.score(kept, *operands),
        )
        rows.append(
            {
                "head_dim": head_dim,
                "K @ q, Mkeys/s": len(keys) / plain / 1e6,
                "golden, Mkeys/s": len(keys) / golden / 1e6,
                "golden / plain": plain / golden,
            }
        )
    return Table(f"Golden scorer, {_BLOCKS * tokens:,} keys and {heads} query heads at a time", rows)


def _best_seconds(*works: Callable[[], Any]) -> list[float]:
    best = [float("inf")] * len(works)
    for _ in range(_REPEATS):
        for index, work in enumerate(works):
            started = time.perf_counter()
            work()
            best[index] = min(best[index], time.perf_counter() - started)
    return best
