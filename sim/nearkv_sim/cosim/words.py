"""Payloads as arrays: fields of an Amaranth layout packed into 32-bit words and back, all beats at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.hdl import Shape
from amaranth.lib import data

from nearkv_sim.cosim.result import Words

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Leaf:
    """A field that is a number, or an array of numbers, at a bit offset of the payload."""

    path: tuple[str, ...]
    offset: int
    width: int  # of one element
    signed: bool
    dimensions: tuple[int, ...]  # of the array; () for a single number

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def elements(self) -> int:
        return math.prod(self.dimensions)

    @property
    def is_bytes(self) -> bool:
        """Whether the field is too wide for an integer and travels as bytes."""
        return self.width > 64


def pack_words(layout: Any, **fields: Any) -> Words:
    """Pack named fields into beats.

    Args:
        layout: a StructLayout; its fields are numbers, arrays of numbers, or structs again.
        fields: one per field of the layout. Numbers: integers [beats]; arrays: integers [beats, length,
            ...]; structs: a dict of fields. An unsigned number may also come as its little-endian bytes,
            uint8 [beats, ceil(width / 8)], and must if it is wider than 64 bits. A value without the beats
            axis is the same in every beat.

    Returns uint32 [beats, ceil(layout bits / 32)], least significant word first. Raises ValueError for a
    missing or unknown field, a wrong shape or dtype, a value that does not fit.

    """
    leaves, width_bits = _flatten(layout)
    values = {path: np.asarray(value) for path, value in _flat_values(fields)}
    names = {leaf.path: leaf for leaf in leaves}
    if values.keys() != names.keys():
        given = ", ".join(sorted(".".join(path) for path in values)) or "none"
        raise ValueError(f"fields are {given}; allowed: {', '.join(leaf.name for leaf in leaves)}")
    lengths = {
        leaf.name: len(values[leaf.path])
        for leaf in leaves
        if values[leaf.path].ndim > _rank(leaf, values[leaf.path])
    }
    if len(set(lengths.values())) > 1:
        raise ValueError(f"numbers of beats are {lengths}; allowed: one number of beats for all fields")
    beats = next(iter(lengths.values()), 1)
    packed = np.zeros((beats, 4 * ((width_bits + 31) // 32)), np.uint8)
    for leaf in leaves:
        value = values[leaf.path]
        if _as_bytes(leaf, value):
            _put_bytes(packed, leaf.offset, _checked_bytes(leaf, value, beats))
        else:
            _put(packed, leaf, _checked(leaf, value, beats))
    return packed.view("<u4").astype(np.uint32, copy=False)


def unpack_words(layout: Any, words: npt.ArrayLike) -> dict[str, Any]:
    """Read the fields of beats.

    Args:
        layout: as for `pack_words`.
        words: uint32 [beats, ceil(layout bits / 32)].

    Returns by field: int64 or uint64 [beats] for a number, [beats, length, ...] for an array, uint8
    [beats, ceil(width / 8)] for a number wider than 64 bits, a dict for a struct. Raises ValueError for
    words of another shape or dtype.

    """
    leaves, width_bits = _flatten(layout)
    array = np.asarray(words)
    columns = (width_bits + 31) // 32
    if array.dtype != np.uint32 or array.ndim != 2 or array.shape[1] != columns:
        raise ValueError(f"words are {array.dtype} {list(array.shape)}; allowed: uint32 [beats, {columns}]")
    packed = np.ascontiguousarray(array, "<u4").view(np.uint8).reshape(len(array), 4 * columns)
    result: dict[str, Any] = {}
    for leaf in leaves:
        target = result
        for key in leaf.path[:-1]:
            target = target.setdefault(key, {})
        target[leaf.path[-1]] = _get(packed, leaf)
    return result


def _flatten(layout: Any) -> tuple[list[_Leaf], int]:
    cast = data.Layout.cast(layout)
    if not isinstance(cast, data.StructLayout):
        raise ValueError(f"layout is {layout!r}; allowed: a StructLayout")
    return list(_leaves(cast, (), 0)), int(cast.size)


def _leaves(layout: data.StructLayout, path: tuple[str, ...], base: int) -> Iterator[_Leaf]:
    for key, member in layout:
        shape, dimensions = member.shape, []
        while isinstance(shape, data.ArrayLayout):
            dimensions.append(shape.length)
            shape = shape.elem_shape
        inner, offset = (*path, key), base + member.offset
        name = ".".join(inner)
        if isinstance(shape, data.Layout) or (
            isinstance(shape, type) and issubclass(shape, data.Struct | data.Union)
        ):
            struct = data.Layout.cast(shape)
            if dimensions or not isinstance(struct, data.StructLayout):
                raise ValueError(
                    f"field {name} is {member.shape!r}; allowed: numbers, arrays of numbers, structs"
                )
            yield from _leaves(struct, inner, offset)
            continue
        number = Shape.cast(shape)
        if dimensions and number.width > 64:
            raise ValueError(f"field {name} has elements of {number.width} bits; allowed: at most 64")
        yield _Leaf(inner, offset, number.width, number.signed, tuple(dimensions))


def _flat_values(fields: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat_values(value, (*path, name))
        else:
            yield (*path, name), value


def _as_bytes(leaf: _Leaf, value: npt.NDArray[Any]) -> bool:
    """Whether a value is the bytes of a number rather than the number."""
    return (
        not leaf.dimensions
        and not leaf.signed
        and value.dtype == np.uint8
        and value.ndim in (1, 2)
        and value.shape[-1] == (leaf.width + 7) // 8
        and (value.ndim == 2 or leaf.is_bytes)
    )


def _rank(leaf: _Leaf, value: npt.NDArray[Any]) -> int:
    """Axes of a value without beats."""
    return 1 if _as_bytes(leaf, value) else len(leaf.dimensions)


def _checked_bytes(leaf: _Leaf, value: npt.NDArray[Any], beats: int) -> _Bytes:
    """The value as [beats, bytes]; ValueError if it does not fit."""
    spare = 8 * value.shape[-1] - leaf.width
    if spare and value.size and int(value[..., -1].max()) >> (8 - spare):
        raise ValueError(f"field {leaf.name} has bits above its width; allowed: {leaf.width} bits")
    return np.broadcast_to(value, (beats, value.shape[-1]))


def _checked(leaf: _Leaf, value: npt.NDArray[Any], beats: int) -> npt.NDArray[Any]:
    """The value as [beats, elements]; ValueError if it does not fit."""
    rank = len(leaf.dimensions)
    fits = value.ndim in (rank, rank + 1) and value.shape[value.ndim - rank :] == leaf.dimensions
    if leaf.is_bytes or value.dtype.kind not in "iub" or not fits:
        shape = ", ".join(["beats", *map(str, leaf.dimensions)])
        expected = f"uint8 [beats, {(leaf.width + 7) // 8}]" if leaf.is_bytes else f"integers [{shape}]"
        raise ValueError(f"field {leaf.name} is {value.dtype} {list(value.shape)}; allowed: {expected}")
    if value.size:
        low = -(1 << (leaf.width - 1)) if leaf.signed else 0
        high = (1 << (leaf.width - leaf.signed)) - 1
        if int(value.min()) < low or int(value.max()) > high:
            raise ValueError(
                f"field {leaf.name} reaches {value.min()} and {value.max()}; allowed: {low} to {high}"
            )
    return np.broadcast_to(value, (beats, *leaf.dimensions)).reshape(beats, leaf.elements)


def _put(packed: _Bytes, leaf: _Leaf, value: npt.NDArray[Any]) -> None:
    """Merge numbers [beats, elements]."""
    if leaf.width in (8, 16, 32, 64) and leaf.offset % 8 == 0:
        start, size = leaf.offset // 8, leaf.width // 8
        flat = np.ascontiguousarray(value.astype(f"<u{size}")).view(np.uint8)
        packed[:, start : start + flat.shape[1]] = flat
        return
    patterns = value.astype(np.uint64) & np.uint64((1 << leaf.width) - 1)
    for index in range(leaf.elements):
        little = np.ascontiguousarray(patterns[:, index : index + 1], "<u8").view(np.uint8)
        _put_bytes(packed, leaf.offset + index * leaf.width, little[:, : (leaf.width + 7) // 8])


def _put_bytes(packed: _Bytes, offset: int, value: npt.NDArray[Any]) -> None:
    """Merge bytes whose bits beyond the field are 0 at a bit offset."""
    start, shift = divmod(offset, 8)
    count = value.shape[1]
    packed[:, start : start + count] |= value << np.uint8(shift)
    if shift:
        # The last carry has no byte of its own when the field ends inside the byte before.
        room = min(count, packed.shape[1] - start - 1)
        packed[:, start + 1 : start + 1 + room] |= value[:, :room] >> np.uint8(8 - shift)


def _get(packed: _Bytes, leaf: _Leaf) -> npt.NDArray[Any]:
    if leaf.is_bytes:
        return _get_bytes(packed, leaf.offset, leaf.width)
    kind: Any = np.int64 if leaf.signed else np.uint64
    beats = len(packed)
    if leaf.width in (8, 16, 32, 64) and leaf.offset % 8 == 0:
        start, size = leaf.offset // 8, leaf.width // 8
        flat = np.ascontiguousarray(packed[:, start : start + size * leaf.elements])
        values = flat.view(f"<{'i' if leaf.signed else 'u'}{size}").astype(kind)
    else:
        values = np.zeros((beats, leaf.elements), kind)
        wide = np.zeros((beats, 8), np.uint8)
        spare = np.uint64(64 - leaf.width)
        for index in range(leaf.elements):
            field = _get_bytes(packed, leaf.offset + index * leaf.width, leaf.width)
            wide[:, : field.shape[1]] = field
            patterns = wide.view("<u8")[:, 0].astype(np.uint64)
            # Through the top of the word, so that the right shift extends the sign.
            values[:, index] = (patterns << spare).view(kind) >> kind(spare)
    return values.reshape(beats, *leaf.dimensions)


def _get_bytes(packed: _Bytes, offset: int, width: int) -> _Bytes:
    start, shift = divmod(offset, 8)
    count = (width + 7) // 8
    value = packed[:, start : start + count] >> np.uint8(shift)
    if shift:
        room = min(count, packed.shape[1] - start - 1)
        value[:, :room] |= packed[:, start + 1 : start + 1 + room] << np.uint8(8 - shift)
    if width % 8:
        value[:, -1] &= np.uint8((1 << width % 8) - 1)
    return value
