from __future__ import annotations

import pytest

from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, BlockDescriptor, KeyBlockLayout, KeyFormat


def test_sizes_of_the_usual_block():
    """128 tokens × 128 channels: an 8 KiB plane, a 16 KiB block, 640 B of channel tables."""
    layout = KeyBlockLayout(128)
    assert layout.plane_bytes == 8 << 10
    assert layout.block_bytes == layout.streamed_bytes(KeyFormat.INT8) == 16 << 10
    assert layout.streamed_bytes(KeyFormat.INT4) == 8 << 10
    assert layout.channel_table_bytes == 640
    assert layout.kv_row_bytes == 512


@pytest.mark.parametrize(("head_dim", "block_tokens"), [(96, 128), (0, 128), (64, 0), (64, 100), (64, 1)])
def test_unknown_sizes_are_refused(head_dim, block_tokens):
    with pytest.raises(ValueError, match="allowed"):
        KeyBlockLayout(head_dim, block_tokens)


def descriptor(**changes) -> BlockDescriptor:
    fields = {
        "key_address": 0x1234_5678_9ABC,
        "query_address": 1 << 40,
        "first_token": 256,
        "head_dim": 64,
        "key_format": KeyFormat.INT4,
        "bias": (-5, 2**31 - 1, -(2**31)),
        "shift": (0, 7, 3),
        "generation": 0xFEDC_BA98,
    }
    return BlockDescriptor(**{**fields, **changes})


def test_descriptors_survive_packing():
    packed = descriptor().pack()
    assert len(packed) == DESCRIPTOR_BYTES
    assert BlockDescriptor.unpack(packed) == descriptor()
    # The address leads, little-endian.
    assert packed[:8] == bytes.fromhex("bc9a785634120000")
    # Shifts of four bits each, then the generation, end it.
    assert packed[-8:] == bytes.fromhex("70030000 98badcfe")


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": (2**31,), "shift": (0,)},
        {"bias": (), "shift": ()},
        {"bias": (1, 2), "shift": (0,)},
        {"bias": (0,) * 9, "shift": (0,) * 9},
        {"first_token": -1},
        {"key_address": 1 << 64},
        {"shift": (0, 16, 0)},
        {"shift": (0, -1, 0)},
        {"generation": 1 << 32},
    ],
)
def test_fields_that_do_not_fit_are_refused(changes):
    with pytest.raises(ValueError, match="descriptor"):
        descriptor(**changes).pack()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [(12, 65, "head_dim"), (14, 2, "key_format"), (15, 0, "heads"), (15, 9, "heads")],
)
def test_foreign_descriptors_are_refused(offset, value, message):
    packed = bytearray(descriptor().pack())
    packed[offset] = value
    with pytest.raises(ValueError, match=message):
        BlockDescriptor.unpack(bytes(packed))
    with pytest.raises(ValueError, match=f"allowed: {DESCRIPTOR_BYTES}"):
        BlockDescriptor.unpack(bytes(packed[:-1]))
