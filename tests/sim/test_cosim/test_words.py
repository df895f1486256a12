"""Packed words against Amaranth's own constants, field by field."""

import numpy as np
import pytest
from amaranth.hdl import Shape, signed
from amaranth.lib import data

from nearkv_sim.cosim import pack_words, unpack_words

INNER = data.StructLayout({"tag": 3, "value": signed(33)})
LAYOUTS = {
    "query": data.StructLayout({"data": data.ArrayLayout(signed(10), 7), "last": 1}),
    "aligned": data.StructLayout({"token": 32, "scores": data.ArrayLayout(signed(32), 3), "last": 1}),
    "odd": data.StructLayout({"one": 1, "wide": 64, "signed": signed(64), "array": data.ArrayLayout(3, 5)}),
    "nested": data.StructLayout(
        {"pad": 5, "inner": INNER, "grid": data.ArrayLayout(data.ArrayLayout(4, 3), 2)}
    ),
    "bytes": data.StructLayout({"flag": 1, "data": 1024, "odd": 77, "last": 1}),
    "single": data.StructLayout({"data": signed(2)}),
}


def random_value(rng, shape):
    """A value as Amaranth's `Layout.const` takes it; a quarter of the numbers are extreme."""
    if isinstance(shape, data.StructLayout):
        return {name: random_value(rng, field.shape) for name, field in shape}
    if isinstance(shape, data.ArrayLayout):
        return [random_value(rng, shape.elem_shape) for _ in range(shape.length)]
    number = Shape.cast(shape)
    low = -(1 << (number.width - 1)) if number.signed else 0
    high = low + (1 << number.width) - 1
    if rng.random() < 0.25:
        return (low, high)[rng.integers(2)]
    return low + int.from_bytes(rng.bytes(200), "little") % (1 << number.width)


def stack(shape, values):
    """Beats of such values as `pack_words` takes them."""
    if isinstance(shape, data.StructLayout):
        return {name: stack(field.shape, [value[name] for value in values]) for name, field in shape}
    if isinstance(shape, int) and shape > 64:
        count = (shape + 7) // 8
        return np.array([list(value.to_bytes(count, "little")) for value in values], np.uint8)
    # Named, because numpy makes floats of 64-bit integers of both signs.
    return np.array(values, np.uint64 if shape == 64 else np.int64)


@pytest.mark.parametrize("name", LAYOUTS)
def test_words_equal_amaranths_constants(name):
    layout = LAYOUTS[name]
    rng = np.random.default_rng(1)
    beats = [random_value(rng, layout) for _ in range(64)]
    fields = stack(layout, beats)
    words = pack_words(layout, **fields)
    assert words.dtype == np.uint32
    assert words.shape == (64, (layout.size + 31) // 32)
    expected = [layout.const(beat).as_bits() for beat in beats]
    assert [int.from_bytes(row.astype("<u4").tobytes(), "little") for row in words] == expected

    def compare(got, given):
        if isinstance(given, dict):
            assert got.keys() == given.keys()
            for key in given:
                compare(got[key], given[key])
        else:
            np.testing.assert_array_equal(got, given)

    compare(unpack_words(layout, words), fields)


def test_by_hand():
    layout = data.StructLayout({"data": data.ArrayLayout(signed(10), 2), "token": 16, "last": 1})
    words = pack_words(layout, data=[[1, -1]], token=[0xABCD], last=[1])
    # Bits 0…9: 1; 10…19: all ones; 20…35: token; 36: last.
    assert words.tolist() == [[0x001 | 0x3FF << 10 | (0xBCD << 20), 0xA | 1 << 4]]


def test_bytes_stand_for_an_unsigned_number_of_any_width():
    layout = data.StructLayout({"data": 64, "last": 1})
    raw = np.arange(24, dtype=np.uint8).reshape(3, 8)
    np.testing.assert_array_equal(
        pack_words(layout, data=raw, last=0), pack_words(layout, data=raw.view("<u8")[:, 0], last=0)
    )


def test_struct_classes_are_layouts():
    class Tagged(data.Struct):
        tag: 3
        value: signed(5)

    layout = data.StructLayout({"head": Tagged, "last": 1})
    words = pack_words(layout, head={"tag": [5], "value": [-1]}, last=[1])
    assert words.tolist() == [[0b1_11111_101]]
    assert unpack_words(Tagged, words & 0xFF)["value"].tolist() == [-1]


def test_values_without_beats_repeat():
    layout = data.StructLayout({"shift": data.ArrayLayout(3, 2), "raw": 72, "last": 1})
    raw = np.arange(9, dtype=np.uint8)
    words = pack_words(layout, shift=[5, 6], raw=raw, last=[0, 0, 1])
    fields = unpack_words(layout, words)
    assert fields["shift"].tolist() == [[5, 6]] * 3
    assert fields["raw"].tolist() == [raw.tolist()] * 3
    assert pack_words(layout, shift=[5, 6], raw=raw, last=1).shape == (1, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": [1]}, "fields are a; allowed: a, b"),
        ({"a": [1], "b": [[1, 2]], "c": [1]}, "fields are a, b, c; allowed: a, b"),
        ({"a": [1, 2], "b": [[1, 2]]}, r"numbers of beats are \{'a': 2, 'b': 1\}"),
        ({"a": [8], "b": [[1, 2]]}, "field a reaches 8 and 8; allowed: 0 to 7"),
        ({"a": [-1], "b": [[1, 2]]}, "field a reaches -1 and -1"),
        ({"a": [1], "b": [[1, -513]]}, "field b reaches -513 and 1; allowed: -512 to 511"),
        ({"a": [1.0], "b": [[1, 2]]}, r"field a is float64 \[1\]; allowed: integers \[beats\]"),
        ({"a": [1], "b": [[1, 2, 3]]}, r"field b is int64 \[1, 3\]; allowed: integers \[beats, 2\]"),
    ],
)
def test_bad_fields(fields, message):
    layout = data.StructLayout({"a": 3, "b": data.ArrayLayout(signed(10), 2)})
    with pytest.raises(ValueError, match=message):
        pack_words(layout, **fields)


def test_bad_bytes_layouts_and_words():
    wide = data.StructLayout({"raw": 77})
    with pytest.raises(ValueError, match=r"field raw is uint8 \[1, 9\]; allowed: uint8 \[beats, 10\]"):
        pack_words(wide, raw=np.zeros((1, 9), np.uint8))
    with pytest.raises(ValueError, match="field raw has bits above its width; allowed: 77 bits"):
        pack_words(wide, raw=np.full((1, 10), 255, np.uint8))
    with pytest.raises(ValueError, match=r"words are int64 \[1, 3\]; allowed: uint32 \[beats, 3\]"):
        unpack_words(wide, np.zeros((1, 3), np.int64))
    with pytest.raises(ValueError, match="allowed: a StructLayout"):
        pack_words(data.ArrayLayout(3, 2), a=[1])
    with pytest.raises(ValueError, match="elements of 65 bits; allowed: at most 64"):
        pack_words(data.StructLayout({"a": data.ArrayLayout(65, 2)}), a=[1])
    with pytest.raises(ValueError, match="allowed: numbers, arrays of numbers, structs"):
        pack_words(data.StructLayout({"a": data.ArrayLayout(INNER, 2)}), a=[1])
