"""A bit of a stored block is wrong, or the block is another: the job stops, names it, and writes nothing."""

from dataclasses import replace

import pytest

from nearkv.codec.block_header import HEADER_DTYPE, header_crcs, stream_crc
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES, HIGH_CRC_WORD

E = reg.ErrorCode
BLOCK, TOKEN = 2, 132  # INT8 or INT4 by its number: both planes of 0 and 2, the high plane of 1


def header_of(bench, block=BLOCK):
    return bench.keys + 4096 * block + bench.block_bytes


def failed(bench):
    assert bench.run() == reg.JobState.FAILED
    assert bench.untouched()
    assert bench.get(reg.ERROR_TOKENS) == bench.design.block_tokens
    return bench.error


@pytest.mark.parametrize("bit", [0, 7])
@pytest.mark.parametrize("part", [0, 0.25, 0.4999, 0.5, 0.75, 0.9999])
def test_a_flipped_bit_of_a_plane(bench, part, bit):
    plane = bench.keys + 4096 * BLOCK
    bench.flip(plane + int(part * bench.block_bytes), bit)
    second_bytes = bench.block_bytes // 2 if part >= 0.5 else 0
    assert failed(bench) == (E.KEY_CRC, plane + second_bytes, TOKEN)


def test_planes_that_are_not_streamed_are_not_judged(bench):
    bench.flip(bench.keys + 4096 + bench.block_bytes - 1, 0)  # low plane of the INT4 block
    assert bench.run() == reg.JobState.DONE
    assert bench.get(reg.ERROR_TOKENS) == 0


@pytest.mark.parametrize("byte", range(HEADER_BYTES))
def test_a_flipped_bit_of_the_header(bench, byte):
    bench.flip(header_of(bench) + byte, byte % 8)
    assert failed(bench) == (E.HEADER_CRC, header_of(bench), TOKEN)


FIELDS = [name for name in HEADER_DTYPE.names if name != "header_crc32c"]


@pytest.mark.parametrize("name", FIELDS)
def test_a_header_of_something_else(bench, name):
    header = bench.card.read_memory(header_of(bench), HEADER_BYTES).view(HEADER_DTYPE)
    header[name].reshape(-1)[0] ^= 1
    header["header_crc32c"] = header_crcs(header)
    bench.write(header_of(bench), header.view("u1"))
    if name == "plane_crc32c":
        assert failed(bench) == (E.KEY_CRC, bench.keys + 4096 * BLOCK, TOKEN)
    else:
        assert failed(bench) == (E.HEADER_IDENTITY, header_of(bench), TOKEN)


@pytest.mark.parametrize("name", ["model", "sequence", "layer", "kv_head"])
def test_blocks_of_another_stream(bench, name):
    other = replace(bench.identity, **{name: getattr(bench.identity, name) ^ 1})
    bench.arguments[reg.STREAM_CRC32C] = stream_crc(other)
    assert failed(bench) == (E.HEADER_IDENTITY, header_of(bench, 0), 100)


def test_a_block_in_the_place_of_another(bench):
    """As a write that went astray leaves it: planes and header agree with each other, not with the job."""
    nbytes = bench.block_bytes + HEADER_BYTES
    bench.write(bench.keys + 4096 * BLOCK, bench.card.read_memory(bench.keys, nbytes))
    assert failed(bench) == (E.HEADER_IDENTITY, header_of(bench), TOKEN)


def test_a_lost_write(bench):
    """The block is still its earlier generation."""
    old = bench.card.read_memory(header_of(bench), HEADER_BYTES).view(HEADER_DTYPE)
    old["generation"] -= 1
    old["header_crc32c"] = header_crcs(old)
    bench.write(header_of(bench), old.view("u1"))
    assert failed(bench) == (E.HEADER_IDENTITY, header_of(bench), TOKEN)


def test_the_first_bad_block_is_reported(bench):
    bench.flip(header_of(bench, 2), 0)
    bench.flip(header_of(bench, 1) + 4 * HIGH_CRC_WORD, 0)
    bench.flip(bench.keys, 0)
    # Headers are judged before planes are.
    assert failed(bench) == (E.HEADER_CRC, header_of(bench, 1), 116)
