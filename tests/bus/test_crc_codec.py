"""CRC32C of the host codec against RFC 3720's vectors, Amaranth's model and its own algebra."""

import numpy as np
import pytest
from amaranth.lib.crc.catalog import CRC32_ISCSI

from nearkv.codec.crc import crc32c, crc32c_combine, crc32c_rows

# RFC 3720, appendix B.4; the last is a SCSI Read (10) command PDU.
RFC_3720 = {
    "zeros": (bytes(32), 0x8A91_36AA),
    "ones": (b"\xff" * 32, 0x62A8_AB43),
    "ascending": (bytes(range(32)), 0x46DD_794E),
    "descending": (bytes(range(31, -1, -1)), 0x113F_DB5C),
    "read command": (
        bytes.fromhex(
            "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
        ),
        0xD996_3A56,
    ),
}
AMARANTH = CRC32_ISCSI(8)


def as_bytes(data):
    return np.frombuffer(bytes(data), np.uint8)


def test_check_value():
    assert crc32c(as_bytes(b"123456789")) == 0xE306_9283


@pytest.mark.parametrize(("data", "expected"), RFC_3720.values(), ids=RFC_3720)
def test_published_vectors(data, expected):
    assert crc32c(as_bytes(data)) == expected


def test_every_short_length_equals_amaranths_model():
    rng = np.random.default_rng(1)
    for nbytes in (*range(70), 127, 128, 129, 255, 256, 257, 385, 1023):
        data = rng.integers(0, 256, nbytes).astype(np.uint8)
        assert crc32c(data) == AMARANTH.compute(data.tolist()), nbytes


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1), (7, 130), (5, 4096)])
def test_rows_equal_single_crcs(shape):
    rows = np.random.default_rng(2).integers(0, 256, shape).astype(np.uint8)
    found = crc32c_rows(rows)
    assert found.dtype == np.uint32
    assert found.tolist() == [AMARANTH.compute(row) for row in rows.tolist()]


def test_pieces_combine_in_any_cut():
    data = np.random.default_rng(3).integers(0, 256, 300).astype(np.uint8)
    whole = AMARANTH.compute(data.tolist())
    for cut in (0, 1, 128, 255, 299, 300):
        first, second = crc32c(data[:cut]), crc32c(data[cut:])
        assert crc32c_combine(first, second, len(data) - cut) == whole
        assert crc32c(data[cut:], first) == whole


def test_every_flipped_bit_is_seen():
    data = np.random.default_rng(4).integers(0, 256, 64).astype(np.uint8)
    flipped = np.repeat(data[None], 512, axis=0)
    flipped[np.arange(512), np.arange(512) // 8] ^= np.uint8(1) << (np.arange(512) % 8).astype(np.uint8)
    crcs = crc32c_rows(np.concatenate([data[None], flipped]))
    assert len(set(crcs.tolist())) == 513


def test_the_data_is_left_alone():
    data = np.arange(200, dtype=np.uint8)
    data.flags.writeable = False
    crc32c(data)
    np.testing.assert_array_equal(data, np.arange(200, dtype=np.uint8))


def test_bad_input_is_refused():
    good = np.zeros(4, np.uint8)
    with pytest.raises(ValueError, match="crc is -0x1; allowed: 0 to 0xffffffff"):
        crc32c(good, -1)
    with pytest.raises(ValueError, match=r"data has shape \(2, 2\)"):
        crc32c(good.reshape(2, 2))
    with pytest.raises(ValueError, match=r"rows are int8 with shape \(1, 4\)"):
        crc32c_rows(good.view(np.int8)[None])
    with pytest.raises(ValueError, match="second_bytes is -1"):
        crc32c_combine(0, 0, -1)
