"""A kernel with two key masters behind the link: blocks in both banks, read through both ports."""

from dataclasses import replace

import numpy as np

from nearkv.device.cold_store import ColdStore
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.transports import open_pcie, open_tlm

BLOCK, BLOCKS = 16, 24
COUNTS = (1, 2, 7, BLOCKS)
DESIGN = replace(
    get_design("tiny"), name="two_banks", block_tokens=BLOCK, key_masters=2, key_bank_bytes=1 << 16
)


def run_on(transport):
    """Of jobs of both formats over some blocks in any order: scores, and CYCLES."""
    rng = np.random.default_rng(5)
    keys, values = rng.standard_normal((2, BLOCKS * BLOCK, 64)).astype(np.float16)
    query = rng.standard_normal((2, 64)).astype(np.float16)
    scores, cycles = [], []
    with transport:
        driver = ScorerDriver(transport)
        stream = ColdStore(driver).open_stream("s", 64)
        stream.seal(keys, values)
        assert np.array_equal(stream.fetch(np.arange(BLOCKS * BLOCK)), (keys, values))
        scores.append(stream.score(query, rng.permutation(BLOCKS)).scores)
        for count in COUNTS:
            for key_format in KeyFormat:
                scores.append(stream.score(query, np.arange(count), key_format).scores)
                cycles.append(driver.last_job().cycles)
    return np.concatenate(scores), np.array(cycles)


def test_two_key_masters_behind_the_link():
    expected, charged = run_on(open_tlm(DESIGN, memory_bytes=1 << 20))
    scores, cycles = run_on(open_pcie(DESIGN, memory_bytes=1 << 20))
    assert np.array_equal(scores, expected)
    # Blocks lie in the banks in turn, as the card model has it.
    assert (np.abs(charged - cycles) <= 0.02 * cycles).all(), (charged, cycles)
