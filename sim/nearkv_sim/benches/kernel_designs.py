"""Small builds of the kernel, for its benches."""

from __future__ import annotations

from dataclasses import replace

from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES
from nearkv_hdl.spec.topk_config import TopKConfig

_TINY = replace(get_design("tiny"), block_tokens=16)
_TOPK = TopKConfig(capacity=256, lanes=2, token_run=16, candidate_rows=8)
_BANKS = replace(
    _TINY,
    name="banks",
    bus_bytes=64,
    lanes=64,
    query_group=2,
    head_dims=(64, 128, 256),
    block_tokens=64,
    topk=replace(_TOPK, capacity=512, lanes=4, token_run=64),
    key_masters=2,
    key_bank_bytes=4 * BLOCK_ALIGN_BYTES,
)
# Small blocks, so that a job has many; rows of codes longer than a beat, and shorter.
DESIGNS = {
    "narrow": replace(
        _TINY, name="narrow", query_group=3, head_dims=(64, 128, 256), query_bits=10, topk=_TOPK
    ),
    "wide": replace(
        _TINY,
        name="wide",
        bus_bytes=64,
        lanes=32,
        query_group=3,
        head_dims=(64, 128),
        block_tokens=32,  # two beats of a head's scores: a selection's last chunk may be half of one
        topk=replace(_TOPK, capacity=512, lanes=4),
    ),
    # A bank holds a few pages, so that blocks of a job lie in both, and some in one and the next.
    "banks": _BANKS,
    "one_master": replace(_BANKS, name="one_master", key_masters=1, key_bank_bytes=0),
}
