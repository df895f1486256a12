"""CRC32C (Castagnoli), the check value of every block and of what a kernel reads and writes.

Reflected polynomial 0x82F63B78, initial value and final XOR all ones: RFC 3720, section 12.1, as in iSCSI,
ext4, NVMe. The CRC of the nine bytes "123456789" is 0xE3069283.

Everything follows from the register's linearity over GF(2). Without initial value and final XOR, the
register after zero bytes stays 0, so that data may be padded in front; and the register after two pieces is
that of the first, advanced by as many zero bytes as the second is long, XOR that of the second. So pieces of
equal length are worked on side by side, whole arrays at a time, and joined by `crc32c_combine`.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Crc32 = NDArray[np.uint32]

POLYNOMIAL = 0x82F6_3B78  # bit 31 is the coefficient of x^0
ALL_ONES = 0xFFFF_FFFF
_PIECE_BYTES = 128  # shortest piece of a row that is worked on by itself
_WORD_BITS = 16  # bits of data taken by one table access


def crc32c(data: Bytes, crc: int = 0) -> int:
    """CRC32C of uint8 [nbytes]; `crc` is that of the data before it, 0 if there is none.

    Raises ValueError for an array of another kind, or a crc that is not 32 bits wide.
    """
    if not 0 <= crc <= ALL_ONES:
        raise ValueError(f"crc is {crc:#x}; allowed: 0 to {ALL_ONES:#x}")
    if data.ndim != 1:
        raise ValueError(f"data has shape {data.shape}; allowed: uint8 [nbytes]")
    return crc32c_combine(crc, int(crc32c_rows(data[None])[0]), len(data))


def crc32c_rows(rows: Bytes) -> Crc32:
    """CRC32C of every row of uint8 [rows, nbytes]: uint32 [rows].

    Raises ValueError for an array of another kind.
    """
    if rows.dtype != np.uint8 or rows.ndim != 2:
        raise ValueError(f"rows are {rows.dtype} with shape {rows.shape}; allowed: uint8 [rows, nbytes]")
    count, nbytes = rows.shape
    start = _advance(np.full(1, ALL_ONES, np.uint32), nbytes)  # what the initial value becomes
    if nbytes == 0 or count == 0:
        return np.repeat(start ^ np.uint32(ALL_ONES), count)
    pieces = 1 << max(0, (nbytes // _PIECE_BYTES).bit_length() - 1)
    piece_bytes = 2 * -(-nbytes // (2 * pieces))
    padded = np.zeros((count, pieces * piece_bytes), np.uint8)
    padded[:, pieces * piece_bytes - nbytes :] = rows
    # Words of all pieces that are taken in one step, side by side.
    words = np.ascontiguousarray(padded.view("<u2").reshape(count * pieces, -1).T)
    register = np.zeros(count * pieces, np.uint32)
    table = _word_table()
    for word in words:
        register = table[(register ^ word) & ALL_ONES >> _WORD_BITS] ^ register >> _WORD_BITS
    while pieces > 1:
        first, second = register[0::2], register[1::2]
        register = _advance(first, piece_bytes) ^ second
        pieces, piece_bytes = pieces // 2, 2 * piece_bytes
    return register ^ start ^ np.uint32(ALL_ONES)


def crc32c_combine(first: int, second: int, second_bytes: int) -> int:
    """CRC32C of two pieces one behind the other, from their CRCs and the length of the second.

    Initial value and final XOR cancel out. Raises ValueError for a negative length.
    """
    if second_bytes < 0:
        raise ValueError(f"second_bytes is {second_bytes}; allowed: from 0")
    tables = _advance_tables(second_bytes)
    advanced = 0
    for index, table in enumerate(tables):
        advanced ^= table[first >> 8 * index & 0xFF]
    return advanced ^ second


def _advance(register: Crc32, nbytes: int) -> Crc32:
    """Registers after `nbytes` zero bytes."""
    power = 0
    while nbytes:
        if nbytes & 1:
            bits = register[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
            register = np.bitwise_xor.reduce(bits * _advance_columns(power), axis=1)
        nbytes >>= 1
        power += 1
    return register


@cache
def _advance_columns(power: int) -> Crc32:
    """What each bit of the register becomes after 2^power zero bytes: uint32 [32]."""
    if power == 0:
        columns = np.uint32(1) << np.arange(32, dtype=np.uint32)
        return _word_register(_word_register(columns, 4), 4)
    half = power - 1
    return _advance(_advance_columns(half), 1 << half)


@lru_cache(maxsize=64)
def _advance_tables(nbytes: int) -> list[list[int]]:
    """What each byte of the register becomes after `nbytes` zero bytes: [4][256]."""
    values = np.arange(256, dtype=np.uint32)
    return [_advance(values << np.uint32(8 * index), nbytes).tolist() for index in range(4)]


@cache
def _word_table() -> Crc32:
    """Register after _WORD_BITS bits, by their XOR with its low bits: uint32 [2^_WORD_BITS]."""
    return _word_register(np.arange(1 << _WORD_BITS, dtype=np.uint32), _WORD_BITS)


def _word_register(register: Crc32, bits: int) -> Crc32:
    """Registers after `bits` zero bits, one polynomial division step each."""
    for _ in range(bits):
        register = register >> np.uint32(1) ^ np.uint32(POLYNOMIAL) * (register & np.uint32(1))
    return register
