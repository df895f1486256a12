"""Blocks that are whole but not the ones asked for, and every single bit of a header, through the driver."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.device.cold_store import ColdStore
from nearkv.device.errors import JobError
from nearkv_hdl.spec.block_header import HEADER_BYTES, StreamIdentity
from nearkv_hdl.spec.registers import ErrorCode

BLOCK, HEAD_DIM, PLANES_BYTES = 16, 64, 16 * 64
IDENTITIES = {"a": StreamIdentity(1, 2, 3, 4), "b": StreamIdentity(1, 2, 3, 5)}


@pytest.fixture
def transport_name():
    return "tlm"


@pytest.fixture
def streams(driver, rng):
    store = ColdStore(driver)
    for name, identity in IDENTITIES.items():
        keys = rng.standard_normal((4 * BLOCK, HEAD_DIM)).astype(np.float16)
        store.open_stream(name, HEAD_DIM, identity).seal(keys, keys)
    return store.streams


@pytest.fixture
def memory(driver):
    return driver.transport


def addresses(stream):
    return stream._stored.key_addresses.tolist()


def jobs(stream):
    query = np.ones((2, HEAD_DIM), np.float16)
    return (lambda: stream.score(query, [1, 2]), lambda: stream.score_topk(query, [2, 1], 3))


@pytest.mark.parametrize(("name", "block"), [("b", 2), ("a", 3)], ids=["another stream", "another block"])
def test_a_block_of_something_else_at_the_right_address(streams, memory, name, block):
    at, nbytes = addresses(streams["a"])[2], PLANES_BYTES + HEADER_BYTES
    good = memory.read_memory(at, nbytes)
    memory.write_memory(at, memory.read_memory(addresses(streams[name])[block], nbytes))
    for job in jobs(streams["a"]):
        with pytest.raises(JobError, match=r"stream 'a', block 2: .*HEADER_IDENTITY .*, tokens 32 to 47"):
            job()
    memory.write_memory(at, good)
    for job in jobs(streams["a"]):
        job()


def test_contents_of_an_earlier_generation(streams):
    """The writer has counted on, the store was lost."""
    stream = streams["a"]
    before = stream._stored
    stream._stored = replace(before, generations=before.generations + (np.arange(4) == 2))
    for job in jobs(stream):
        with pytest.raises(JobError, match=r"stream 'a', block 2: .*HEADER_IDENTITY") as caught:
            job()
        assert (caught.value.token, caught.value.tokens) == (32, 16)
    stream._stored = before
    for job in jobs(stream):
        job()


def test_every_bit_of_a_header_and_some_of_the_planes(streams, memory, rng):
    stream = streams["a"]
    at = addresses(stream)[2]
    score, _ = jobs(stream)
    flips = [(PLANES_BYTES + byte, bit) for byte in range(HEADER_BYTES) for bit in range(8)]
    flips += [(byte, byte % 8) for byte in rng.integers(0, PLANES_BYTES, 40).tolist()]
    for byte, bit in flips:
        good = memory.read_memory(at + byte, 1)
        memory.write_memory(at + byte, good ^ (1 << bit))
        with pytest.raises(JobError) as caught:
            score()
        expected = ErrorCode.HEADER_CRC if byte >= PLANES_BYTES else ErrorCode.KEY_CRC
        assert (caught.value.code, caught.value.token) == (expected, 32)
        memory.write_memory(at + byte, good)
    score()
