"""Golden scorer against plain float32 `K @ q` of the same shape."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import Row, median_seconds
from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.scorer import ScorerModel


def run() -> list[Row]:
    """Keys per second, with codes already decoded, as the engine behind `tlm` keeps them."""
    design = get_design("smartssd_ku15p")
    model = ScorerModel(design)
    rng = np.random.default_rng(0)
    rows = []
    for tokens, heads, head_dim in ((4096, 1, 128), (32768, 1, 128), (32768, 8, 128), (131072, 8, 128)):
        keys = rng.standard_normal((tokens, head_dim)).astype(np.float16)
        query = rng.standard_normal((heads, head_dim)).astype(np.float16)
        blocks = quantise_keys(keys)
        codes = blocks.codes.astype(model.exact_dtype(head_dim))
        plain_keys, plain_query = keys.astype(np.float32), query.astype(np.float32).T.copy()
        folded = fold_query(prepare_query(query), blocks.headers, KeyFormat.INT8, design.query_code)

        def score(codes=codes, folded=folded):
            return model.score(codes, folded.codes, folded.shift, folded.bias)

        def fold_and_score(blocks=blocks, codes=codes, query=query):
            again = fold_query(prepare_query(query), blocks.headers, KeyFormat.INT8, design.query_code)
            return model.score(codes, again.codes, again.shift, again.bias)

        def plain(keys=plain_keys, query=plain_query):
            return keys @ query

        seconds = median_seconds({"float32 K @ q": plain, "golden": score, "fold + golden": fold_and_score})
        shape = f"{tokens} tokens, {heads} heads, head_dim {head_dim}"
        rows += [
            Row(
                f"{name}: {shape}", tokens / s / 1e6, "Mkeys/s", seconds["float32 K @ q"] / s, "float32 K @ q"
            )
            for name, s in seconds.items()
        ]
    return rows
