"""Golden scorer against plain float32 `K @ q` of the same shape."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import median_cpu_seconds
from benchmarks.registry import Table
from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.scorer import ScorerModel

_SHAPES = ((4096, 1), (32768, 1), (32768, 8), (131072, 8))  # tokens, heads
_HEAD_DIM = 128


def measure() -> Table:
    """Scores of keys whose codes are already decoded, as the engine behind `tlm` keeps them."""
    design = get_design("smartssd_ku15p")
    model = ScorerModel(design)
    rng = np.random.default_rng(0)
    rows = []
    for tokens, heads in _SHAPES:
        keys = rng.standard_normal((tokens, _HEAD_DIM)).astype(np.float16)
        query = rng.standard_normal((heads, _HEAD_DIM)).astype(np.float16)
        blocks = quantise_keys(keys)
        codes = blocks.codes.astype(model.exact_dtype(_HEAD_DIM))
        plain_keys, plain_query = keys.astype(np.float32), query.astype(np.float32).T.copy()
        folded = fold_query(prepare_query(query), blocks.headers, KeyFormat.INT8, design.query_code)

        def score(codes=codes, folded=folded):
            return model.score(codes, folded.codes, folded.shift, folded.bias)

        def fold_and_score(headers=blocks.headers, codes=codes, query=query):
            again = fold_query(prepare_query(query), headers, KeyFormat.INT8, design.query_code)
            return model.score(codes, again.codes, again.shift, again.bias)

        def plain(keys=plain_keys, query=plain_query):
            return keys @ query

        seconds = median_cpu_seconds(
            {"float32 K @ q": plain, "golden scores": score, "folding and golden scores": fold_and_score}
        )
        rows += [
            {
                "what": name,
                "tokens": tokens,
                "heads": heads,
                "million keys / CPU-s": tokens / spent / 1e6,
                "speed against K @ q": seconds["float32 K @ q"] / spent,
            }
            for name, spent in seconds.items()
        ]
    return Table(f"Golden scorer, head_dim {_HEAD_DIM}, one BLAS thread", rows)
