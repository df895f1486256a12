"""Block headers byte by byte, and as arrays."""

import struct

import numpy as np
import pytest
from amaranth.lib.crc.catalog import CRC32_ISCSI

from nearkv.codec.block_header import HEADER_DTYPE, header_crcs, stream_crc, stream_crcs, with_headers
from nearkv_hdl.spec.block_header import HEADER_BYTES, BlockHeader, StreamIdentity
from nearkv_hdl.spec.layout import KeyBlockLayout

LAYOUT = KeyBlockLayout(64, 16)
IDENTITY = StreamIdentity(model=0x01020304, sequence=0xFFFF_FFFF, layer=0x0506, kv_head=0xFFFF)


def test_a_header_by_hand():
    planes = np.random.default_rng(4).integers(0, 256, (2, LAYOUT.block_bytes)).astype(np.uint8)
    stored = with_headers(planes, LAYOUT, IDENTITY, np.array([16, 0xFFFF_FFF0]), np.array([1, 0xFFFF_FFFF]))
    assert stored.shape == (2, LAYOUT.block_bytes + HEADER_BYTES)
    assert np.array_equal(stored[:, : LAYOUT.block_bytes], planes)
    crc = CRC32_ISCSI(8).compute
    for block, first_token, generation in ((0, 16, 1), (1, 0xFFFF_FFF0, 0xFFFF_FFFF)):
        high, low = planes[block, : LAYOUT.plane_bytes], planes[block, LAYOUT.plane_bytes :]
        head = b"NKVB" + struct.pack("<HH", 2, 64) + bytes.fromhex("04030201 ffffffff 0605 ffff 1000 00 00")
        head += struct.pack("<IIII", first_token, generation, crc(high.tolist()), crc(low.tolist()))
        head += bytes(20)
        assert stored[block, LAYOUT.block_bytes :].tobytes() == head + struct.pack("<I", crc(head))


def test_arrays_equal_the_layout():
    planes = np.random.default_rng(5).integers(0, 256, (1, LAYOUT.block_bytes)).astype(np.uint8)
    stored = with_headers(planes, LAYOUT, IDENTITY, np.array([32]), np.array([7]))[0, LAYOUT.block_bytes :]
    found = stored.view(HEADER_DTYPE)[0]
    high, low = (int(crc) for crc in found["plane_crc32c"])
    header = BlockHeader(IDENTITY, LAYOUT, 32, 7, high, low)
    assert stored.tobytes() == header.pack(int(found["header_crc32c"]))
    assert stream_crcs(stored.view(HEADER_DTYPE))[0] == stream_crc(IDENTITY)
    assert stream_crc(IDENTITY) == CRC32_ISCSI(8).compute(bytes.fromhex("04030201 ffffffff 0605 ffff"))
    assert header_crcs(stored.view(HEADER_DTYPE))[0] == found["header_crc32c"]


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("model", 1 << 32, 4294967295),
        ("sequence", -1, 4294967295),
        ("layer", 65536, 65535),
        ("kv_head", -1, 65535),
    ],
)
def test_identities_that_do_not_fit(field, value, limit):
    with pytest.raises(ValueError, match=f"{field} is {value}; allowed: 0 to {limit}"):
        StreamIdentity(**{field: value})


def test_headers_that_do_not_fit():
    with pytest.raises(ValueError, match=r"header .* does not fit its fields"):
        BlockHeader(IDENTITY, LAYOUT, -1, 0).pack()
