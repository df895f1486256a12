"""Sparse memory against a plain array, and its generations."""

import numpy as np
import pytest

from nearkv_sim.card.memory import CHUNK_BYTES, DeviceMemory, UnwrittenMemory

BASE = 3 * CHUNK_BYTES


@pytest.fixture
def memory():
    return DeviceMemory(BASE, 4 * CHUNK_BYTES)


def test_random_accesses_equal_a_plain_array(memory, rng):
    plain = np.zeros(4 * CHUNK_BYTES, np.uint8)
    written = np.zeros(4 * CHUNK_BYTES, bool)
    edges = CHUNK_BYTES * np.arange(1, 4)
    verified = 0
    for _ in range(1000):
        nbytes = int(rng.integers(1, 400))
        at = int(rng.choice(edges)) - int(rng.integers(0, 2000))
        if rng.random() < 0.5:
            data = rng.integers(0, 256, nbytes, dtype=np.uint8)
            memory.write(BASE + at, data)
            plain[at : at + nbytes] = data
            written[at : at + nbytes] = True
        elif written[at : at + nbytes].all():
            assert np.array_equal(memory.read(BASE + at, nbytes), plain[at : at + nbytes])
            verified += 1
        else:
            with pytest.raises(UnwrittenMemory, match=f"memory of {nbytes} bytes at {BASE + at:#x}"):
                memory.read(BASE + at, nbytes)
    assert verified > 100


def test_gather_equals_reads(memory, rng):
    data = rng.integers(0, 256, 3 * CHUNK_BYTES, dtype=np.uint8)
    memory.write(BASE, data)
    offsets = rng.integers(0, 3 * CHUNK_BYTES - 100, 200)
    offsets[:3] = CHUNK_BYTES - 1, CHUNK_BYTES - 100, 2 * CHUNK_BYTES - 37
    rows = memory.gather(BASE + offsets, 100)
    assert np.array_equal(rows, np.stack([data[at : at + 100] for at in offsets]))
    for bad in (3 * CHUNK_BYTES - 99, 3 * CHUNK_BYTES + 5):
        with pytest.raises(UnwrittenMemory) as caught:
            memory.gather(np.array([BASE, BASE + bad]), 100)
        assert caught.value.address == BASE + bad


def test_generation_rises_with_every_write_to_the_range(memory):
    other = DeviceMemory(BASE, CHUNK_BYTES)
    at, nbytes = BASE + CHUNK_BYTES - 4096, 8192
    assert memory.generation(at, nbytes) == 0
    seen = {0}
    one = np.ones(1, np.uint8)
    for address in (at, at + 8191, at + 4096, at):
        memory.write(address, one)
        generation = memory.generation(at, nbytes)
        assert generation > max(seen)
        seen.add(generation)
    memory.write(at - 1, one)
    memory.write(at + 8192, one)
    assert memory.generation(at, nbytes) == max(seen)
    # Contents of two memories never share an address and a generation.
    other.write(BASE, one)
    memory.write(BASE, one)
    assert other.generation(BASE, 1) != memory.generation(BASE, 1)


def test_bad_ranges_are_refused(memory):
    byte = np.zeros(1, np.uint8)
    for refused in (
        lambda: memory.write(BASE - 1, byte),
        lambda: memory.write(BASE + 4 * CHUNK_BYTES, byte),
        lambda: memory.write(BASE, byte[:0]),
        lambda: memory.read(BASE + 4 * CHUNK_BYTES - 1, 2),
        lambda: memory.read(BASE, 0),
        lambda: memory.gather(np.array([BASE, BASE - 1]), 1),
        lambda: memory.generation(0, 1),
    ):
        with pytest.raises(ValueError, match="allowed: at least 1 byte within 0x300000 to 0x700000"):
            refused()
    with pytest.raises(ValueError, match="memory_base is 0x1; allowed: a multiple of"):
        DeviceMemory(1, 10)
    with pytest.raises(ValueError, match="memory_bytes is 0"):
        DeviceMemory(0, 0)
    for data in (np.zeros(4), np.zeros((2, 2), np.uint8)):
        with pytest.raises(ValueError, match=r"data is .* with shape .*; allowed: uint8"):
            memory.write(BASE, data)
