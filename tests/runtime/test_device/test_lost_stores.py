"""Posted writes of registers that never arrive: a job is repeated, and never gives the scores of another."""

import numpy as np
import pytest

from nearkv.codec.block_header import with_headers
from nearkv.codec.key_block import pack_blocks
from nearkv.codec.query import fold_query, prepare_query
from nearkv.device.descriptors import StoredBlocks
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat
from nearkv_sim.golden.scorer import ScorerModel

TIMEOUT_PS = 10**9
IDENTITY = StreamIdentity(1, 2, 3, 4)
FIRST_TOKENS, GENERATIONS = np.array([32, 0, 16]), np.array([1, 2, 3])
ARGUMENTS = 7 * 2 + 6  # words: addresses and sizes have two
START = ARGUMENTS
STORES = ARGUMENTS + 3  # and ap_start, interrupt status, ap_continue


@pytest.fixture
def driver(faulty):
    return ScorerDriver(faulty, TIMEOUT_PS)


@pytest.fixture
def score(faulty, driver, random_keys, rng):
    """Scores some of three blocks by one of two queries, and checks them."""
    blocks = random_keys(driver.design, 3, 64)
    image = with_headers(pack_blocks(blocks), blocks.layout, IDENTITY, FIRST_TOKENS, GENERATIONS)
    room_bytes = -(-image.shape[1] // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
    addresses = driver.allocate(3 * room_bytes, "keys") + room_bytes * np.arange(3)
    for address, block in zip(addresses.tolist(), image, strict=True):
        faulty.write_memory(address, block)
    queries = [prepare_query(rng.standard_normal((2, 64)).astype(np.float16)) for _ in range(2)]
    folded = [fold_query(q, blocks.headers, KeyFormat.INT8, driver.design.query_code) for q in queries]
    model = ScorerModel(driver.design)
    stored = StoredBlocks(IDENTITY, addresses, FIRST_TOKENS, GENERATIONS)

    def run(first, end, query=0):
        mine = folded[query][first:end]
        expected = model.score(blocks.codes[first:end], mine.codes, mine.shift, mine.bias)
        assert np.array_equal(driver.score(stored[first:end], mine), expected)

    return run


def test_stores_of_a_job(faulty, score):
    faulty.lose()
    score(0, 3)
    assert faulty.stores == STORES


@pytest.mark.parametrize("lost", range(STORES))
def test_one_is_lost(faulty, driver, score, lost):
    """Behind a job over one block, so that every address, size and count that is kept is another."""
    score(1, 2)
    faulty.lose(lost)
    score(0, 3, query=1)
    score(0, 3)
    assert driver.job_retries <= 1


@pytest.mark.parametrize("lost", range(STORES))
def test_one_is_lost_where_scores_of_another_query_lie(faulty, driver, score, lost):
    score(0, 3)
    score(1, 2)
    faulty.lose(lost)
    score(0, 3, query=1)
    assert driver.job_retries <= 1


def test_all_arguments_are_lost(faulty, driver, score):
    """The job before runs again, and well."""
    score(1, 2)
    faulty.lose(*range(ARGUMENTS))
    score(0, 3)
    assert driver.job_retries == 1


def test_the_end_of_the_job_before_is_not_taken_for_this_one(faulty, driver, score):
    score(0, 3)
    before_ps = faulty.now_ps
    faulty.lose(START)
    score(0, 3, query=1)
    assert driver.job_retries == 1
    assert faulty.now_ps - before_ps > TIMEOUT_PS
