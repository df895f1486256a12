from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearkv.codec.key_block import (
    KeyBlocks,
    dequantise_keys,
    join_planes,
    pack_blocks,
    quantise_keys,
    split_planes,
)
from nearkv_hdl.spec.layout import KeyBlockLayout, KeyFormat

EDGES = [0.0, -0.0, 65504.0, -65504.0, 2.0**-24, -(2.0**-24), 6.1e-5, 1.0, -1.0]


def fp16_block(seed: int, tokens: int = 128, head_dim: int = 64) -> np.ndarray:
    """Rows over the whole FP16 range: random bit patterns with the NaNs and infinities taken out."""
    bits = np.random.default_rng(seed).integers(0, 1 << 16, (tokens, head_dim), dtype=np.uint16)
    return np.where((bits & 0x7C00) == 0x7C00, bits & 0x83FF, bits).astype(np.uint16).view(np.float16)


def check_exactly(keys: np.ndarray, blocks: KeyBlocks, channel: int, block: int = 0) -> None:
    """Recompute one channel in rational arithmetic."""
    column = [Fraction(float(k)) for k in keys[block * 128 : (block + 1) * 128, channel]]
    centre = Fraction(float(blocks.headers.centre[block, channel]))
    scale = Fraction(float(blocks.headers.scale[block, channel]))
    reach = max(abs(k - centre) for k in column)
    # The smallest FP16 number that is not below reach / 128.
    assert scale >= reach / 128
    if scale:
        below = Fraction(float(np.nextafter(blocks.headers.scale[block, channel], np.float16(-np.inf))))
        assert below < reach / 128
    for token, k in enumerate(column):
        exact = min(127, max(-128, (k - centre) // scale)) if scale else 0
        assert blocks.codes[block, token, channel] == exact


def test_a_ramp_by_hand():
    """Even keys −128 … 124 and 128: centre 0, scale 1, a code is the key, and the top endpoint clamps."""
    keys = np.zeros((128, 64), np.float16)
    keys[:, 0] = [*range(-128, 126, 2), 128]
    block = quantise_keys(keys)
    assert (block.headers.centre[0, 0], block.headers.scale[0, 0]) == (0.0, 1.0)
    assert block.codes[0, :, 0].tolist() == [*range(-128, 126, 2), 127]
    assert not block.codes[0, :, 1:].any()


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_every_step_is_exact_over_the_whole_fp16_range(seed):
    keys = fp16_block(seed)
    blocks = quantise_keys(keys)
    for channel in range(0, 64, 9):
        check_exactly(keys, blocks, channel)


@pytest.mark.parametrize("value", EDGES)
@pytest.mark.parametrize("other", EDGES)
def test_degenerate_channels(value, other):
    """Constant channels, zeros, subnormals and the largest numbers, alone and with one outlier."""
    keys = np.full((128, 64), value, np.float16)
    keys[5, :32] = other
    blocks = quantise_keys(keys)
    for channel in (0, 63):
        check_exactly(keys, blocks, channel)
    if value == other:
        assert not blocks.headers.scale.any()
        np.testing.assert_array_equal(dequantise_keys(blocks), keys.astype(np.float64))


def test_the_mean_code_is_rounded_half_up():
    blocks = quantise_keys(fp16_block(8, tokens=256))
    for block, channel in ((0, 0), (1, 63), (1, 7)):
        column = blocks.codes[block, :, channel].tolist()
        mean = (Fraction(sum(column), len(column)) + Fraction(1, 2)).__floor__()
        assert blocks.headers.mean_code[block, channel] == mean


def test_error_stays_within_half_a_step_but_for_the_clamped_end():
    keys = np.random.default_rng(3).normal(size=(512, 128)).astype(np.float16)
    blocks = quantise_keys(keys)
    error = np.abs(dequantise_keys(blocks) - keys).reshape(4, 128, 128)
    step = blocks.headers.scale.astype(np.float64)[:, None, :]
    assert (error <= step).all()
    assert (error <= step / 2)[blocks.codes < 127].all()
    coarse = np.abs(dequantise_keys(blocks, KeyFormat.INT4) - keys).reshape(4, 128, 128)
    assert (coarse <= 8 * step).all()


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_planes_hold_nibbles_in_token_order(head_dim):
    rng = np.random.default_rng(head_dim)
    codes = rng.integers(-128, 128, (3, 128, head_dim), dtype=np.int8)
    high, low = split_planes(codes)
    layout = KeyBlockLayout(head_dim)
    assert high.shape == low.shape == (3, layout.plane_bytes)
    np.testing.assert_array_equal(join_planes(high, low, layout), codes)
    np.testing.assert_array_equal(join_planes(high, None, layout), (codes >> 4) * 16)
    # Token 1, channel 3 is an odd nibble of byte (head_dim + 3) // 2.
    assert high[0, (head_dim + 3) // 2] >> 4 == (int(codes[0, 1, 3]) >> 4) & 0xF
    assert low[0, (head_dim + 2) // 2] & 0xF == int(codes[0, 1, 2]) & 0xF


def test_packed_blocks_are_high_plane_then_low_plane():
    blocks = quantise_keys(fp16_block(1, tokens=256))
    packed = pack_blocks(blocks)
    assert packed.shape == (2, blocks.layout.block_bytes)
    high, low = split_planes(blocks.codes)
    np.testing.assert_array_equal(packed[:, : blocks.layout.plane_bytes], high)
    np.testing.assert_array_equal(packed[:, blocks.layout.plane_bytes :], low)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    keys = np.zeros((128, 64), np.float16)
    keys[17, 3] = bad
    with pytest.raises(ValueError, match=f"keys is {bad} at token 17, channel 3; allowed: finite"):
        quantise_keys(keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.zeros((128, 64), np.float32), "float32"),
        (np.zeros((64,), np.float16), "shape"),
        (np.zeros((128, 96), np.float16), "head_dim is 96; allowed: 64, 128, 256"),
        (np.zeros((100, 64), np.float16), "100 tokens; allowed: a positive multiple of 128"),
        (np.zeros((0, 64), np.float16), "0 tokens"),
    ],
)
def test_wrong_shapes_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        quantise_keys(keys)


def test_planes_of_another_size_are_refused():
    with pytest.raises(ValueError, match="low plane has 5 bytes; allowed: 4096"):
        join_planes(np.zeros(4096, np.uint8), np.zeros(5, np.uint8), KeyBlockLayout(64))
