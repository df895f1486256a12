"""Records: what a tier stores of one token's keys and values, with the check value that travels along.

A *row* is the keys and values of one token of one (layer, kv head). Its record is made once, when the row is
written, and every tier stores the same bytes: a value does not depend on where it lies. CRC32C covers model
and format, logical address, generation and record, so that a foreign or outdated record fails it too.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.crc import Crc32, crc32c_rows
from nearkv.codec.key_block import Bytes, Float16
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.layout import FP16_BYTES

RowIndex = NDArray[np.int64]
Generation = NDArray[np.uint32]

_INT8_MAX = CODE.max
_FP16_MAX = np.float32(np.finfo(np.float16).max)
_IDENTITY = np.dtype([("row", "<i8"), ("generation", "<u4"), ("format", "<u4")])


class RowFormat(Enum):
    """How a record holds a row."""

    FP16 = "fp16"  # K | V, lossless
    INT8 = "int8"  # codes K | V, then an FP16 scale each


@dataclass
class Records:
    """Records on their way or from a tier; all arrays have length n.

    Attributes:
        rows: int64, logical address that each record claims.
        generation: uint32, generation of the block it was written under.
        crc: uint32, check value stored beside it.
        data: uint8 [n, record_bytes].

    """

    rows: RowIndex
    generation: Generation
    crc: Crc32
    data: Bytes

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def __getitem__(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Records:
        """Some of them."""
        return Records(self.rows[index], self.generation[index], self.crc[index], self.data[index])

    def copy_from(self, index: slice | NDArray[np.intp], other: Records) -> None:
        """Overwrite records, header and bytes."""
        self.rows[index], self.generation[index] = other.rows, other.generation
        self.crc[index], self.data[index] = other.crc, other.data


def empty_records(count: int, record_bytes: int) -> Records:
    """Records that pass no check."""
    return Records(
        np.full(count, -1, np.int64),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros((count, record_bytes), np.uint8),
    )


@dataclass(frozen=True)
class RowCodec:
    """Makes and checks the records of one cache.

    Attributes:
        head_dim: elements of a key or value row.
        row_format: how records hold them.
        model: identifies model and weights; part of every check value.

    INT8 is that of the migration interface (docs/migration.md), bit for bit: scale = smallest FP16 number
    ≥ max|x| / 127, code = x / scale, half away from zero; back = code · scale to nearest FP16, saturating.
    Keys and values of a row have a scale each, stored in its record.
    """

    head_dim: int
    row_format: RowFormat
    model: str

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        if self.row_format is RowFormat.FP16:
            return 2 * self.head_dim * FP16_BYTES
        return 2 * self.head_dim + 2 * FP16_BYTES

    def check(self, rows: Float16, what: str, shape: tuple[int, ...]) -> None:
        """ValueError for other than finite float16 [*shape, head_dim]."""
        if rows.dtype != np.float16 or rows.shape != (*shape, self.head_dim):
            allowed = f"float16 with {(*shape, self.head_dim)}"
            raise ValueError(f"{what} are {rows.dtype} with shape {rows.shape}; allowed: {allowed}")
        if not np.isfinite(rows).all():
            raise ValueError(f"{what} hold Inf or NaN; allowed: finite numbers")

    def make(self, rows: RowIndex, generation: Generation, keys: Float16, values: Float16) -> Records:
        """Records of rows, finite float16 [n, head_dim]."""
        if self.row_format is RowFormat.FP16:
            data = np.concatenate([keys, values], axis=1).view(np.uint8)
        else:
            (key_codes, key_scale), (value_codes, value_scale) = _quantise(keys), _quantise(values)
            scales = np.stack([key_scale, value_scale], axis=1).view(np.uint8)
            codes = np.concatenate([key_codes, value_codes], axis=1).view(np.uint8)
            data = np.concatenate([codes, scales], axis=1)
        return Records(rows, generation, self.check_values(rows, generation, data), data)

    def readdress(self, records: Records, rows: RowIndex, generation: Generation) -> Records:
        """The same bytes at other addresses, as after a copy on write."""
        return Records(rows, generation, self.check_values(rows, generation, records.data), records.data)

    def rows_of(self, data: Bytes) -> tuple[Float16, Float16]:
        """Keys and values float16 [n, head_dim] of record bytes."""
        d = self.head_dim
        if self.row_format is RowFormat.FP16:
            pair = data.view(np.float16)
            return pair[:, :d], pair[:, d:]
        codes = data[:, : 2 * d].view(np.int8).astype(np.float32)
        scales = np.ascontiguousarray(data[:, 2 * d :]).view(np.float16).astype(np.float32)
        # 8 by 11 significant bits: the product is exact in float32.
        exact = codes.reshape(-1, 2, d) * scales[:, :, None]
        pair = np.clip(exact, -_FP16_MAX, _FP16_MAX).astype(np.float16)
        return pair[:, 0], pair[:, 1]

    def check_values(self, rows: RowIndex, generation: Generation, data: Bytes) -> Crc32:
        """CRC32C of identity and bytes: uint32 [n]."""
        identity = np.empty(len(rows), _IDENTITY)
        identity["row"], identity["generation"] = rows, generation
        identity["format"] = zlib.crc32(f"{self.row_format.value}/{self.head_dim}/{self.model}".encode())
        return crc32c_rows(
            np.concatenate([identity.view(np.uint8).reshape(len(rows), _IDENTITY.itemsize), data], axis=1)
        )

    def good(self, records: Records, rows: RowIndex, generation: Generation) -> NDArray[np.bool_]:
        """Which records are those of `rows` in their generation, unharmed: bool [n]."""
        named = (records.rows == rows) & (records.generation == generation)
        good: NDArray[np.bool_] = named & (self.check_values(rows, generation, records.data) == records.crc)
        return good


def _quantise(rows: Float16) -> tuple[NDArray[np.int8], Float16]:
    """Codes int8 [n, head_dim] and scales float16 [n]."""
    exact = np.abs(rows).max(axis=1).astype(np.float64) / _INT8_MAX
    scale = exact.astype(np.float16)
    scale = np.where(scale < exact, np.nextafter(scale, np.float16(np.inf)), scale)
    scale = np.maximum(scale, np.finfo(np.float16).smallest_subnormal)
    # A quotient of two 11-bit significands is a half exactly or far from it: float64 decides as integers do.
    magnitude = np.floor(np.abs(rows).astype(np.float64) / scale[:, None].astype(np.float64) + 0.5)
    return np.copysign(magnitude, rows).astype(np.int8), scale
