"""A kernel with two key masters behind the link: blocks in both banks, read through both ports."""

from dataclasses import replace

import numpy as np

from nearkv.device.cold_store import ColdStore
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.transports import open_pcie, open_tlm

BLOCK, BLOCKS = 16, 7
DESIGN = replace(
    get_design("tiny"), name="two_banks", block_tokens=BLOCK, key_masters=2, key_bank_bytes=1 << 16
)


def scores_on(transport):
    rng = np.random.default_rng(5)
    keys, values = rng.standard_normal((2, BLOCKS * BLOCK, 64)).astype(np.float16)
    query = rng.standard_normal((2, 64)).astype(np.float16)
    with transport:
        stream = ColdStore(ScorerDriver(transport)).open_stream("s", 64)
        stream.seal(keys, values)
        assert np.array_equal(stream.fetch(np.arange(BLOCKS * BLOCK)), (keys, values))
        return stream.score(query, rng.permutation(BLOCKS)).scores


def test_two_key_masters_behind_the_link():
    expected = scores_on(open_tlm(DESIGN, memory_bytes=1 << 20))
    assert np.array_equal(scores_on(open_pcie(DESIGN, memory_bytes=1 << 20)), expected)
