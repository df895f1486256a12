"""`ColdStore`: sealed key blocks and FP16 rows in device memory, scored and fetched there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearkv.codec.key_block import Float16, check_fp16_rows, no_headers, pack_blocks, quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.formats import TOKEN_INDEX
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """Base-2 logits of some tokens.

    Attributes:
        tokens: int64 [n], token index of each row.
        scores: int32 [n, heads]; the logit is score · 2^-fraction_bits.
        fraction_bits: int64 [heads].

    """

    tokens: Int64
    scores: NDArray[np.int32]
    fraction_bits: Int64


class ColdStore:
    """The cold tier on one device: a set of named streams.

    Args:
        driver: driver of an open transport; all streams share its memory.

    """

    def __init__(self, driver: ScorerDriver) -> None:
        self.driver = driver
        self.streams: dict[str, ColdStream] = {}

    def open_stream(self, name: str, head_dim: int) -> ColdStream:
        """Start the stream of one (sequence, layer, kv head).

        Raises ValueError for a name in use, or a head_dim that the device's design does not score.
        """
        if name in self.streams:
            raise ValueError(f"stream {name!r} is open already; open: {', '.join(self.streams)}")
        self.driver.design.check_head_dim(head_dim)
        self.streams[name] = ColdStream(self.driver, name, head_dim)
        return self.streams[name]


class ColdStream:
    """Sealed tokens of one (sequence, layer, kv head); made by `ColdStore.open_stream`.

    The device holds codes and FP16 rows; the host keeps each block's header and addresses. Token t
    lies in block t // block_tokens. Whatever raises leaves the stream as it was.
    """

    def __init__(self, driver: ScorerDriver, name: str, head_dim: int) -> None:
        self.name = name
        self.head_dim = head_dim
        self._driver = driver
        self._layout = driver.design.layout(head_dim)
        self._headers = no_headers(self._layout)
        self._key_address: Int64 = np.empty(0, np.int64)
        self._row_address: Int64 = np.empty(0, np.int64)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self._layout.block_tokens

    @property
    def sealed_blocks(self) -> int:
        """Blocks on the device."""
        return len(self._key_address)

    @property
    def sealed_tokens(self) -> int:
        """Tokens on the device: 0 … sealed_tokens − 1."""
        return self.sealed_blocks * self.block_tokens

    def seal(self, keys: Float16, values: Float16) -> None:
        """Append whole blocks: quantise the keys, write codes and FP16 rows to the device.

        Args:
            keys: float16 [blocks · block_tokens, head_dim]; no token at all is allowed and does nothing.
            values: float16 of the same shape.

        Raises:
            ValueError: another dtype or shape, a NaN or infinity, no device memory left.
            DeviceError: the write failed twice.

        """
        check_fp16_rows(keys, "keys", self.head_dim)
        check_fp16_rows(values, "values", self.head_dim)
        if keys.shape != values.shape:
            raise ValueError(f"keys has {len(keys)} tokens and values {len(values)}; allowed: as many")
        if len(keys) == 0:
            return
        if self.sealed_tokens + len(keys) > TOKEN_INDEX.max + 1:
            raise ValueError(f"stream {self.name!r} would pass token {TOKEN_INDEX.max}")
        blocks = quantise_keys(keys, self.block_tokens)
        # A block starts on its own mapping unit, also where a build has smaller blocks.
        stride_bytes = -(-self._layout.block_bytes // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        planes = np.zeros((len(blocks), stride_bytes), np.uint8)
        planes[:, : self._layout.block_bytes] = pack_blocks(blocks)
        rows = np.concatenate([keys, values], axis=1).view(np.uint8)
        address = self._driver.allocate(
            planes.nbytes + rows.nbytes, f"stream {self.name!r} with {len(keys)} more tokens"
        )
        # One transfer: blocks, then rows.
        self._driver.access.write_memory(address, np.concatenate([planes.reshape(-1), rows.reshape(-1)]))
        index = np.arange(len(blocks))
        row_address = address + planes.nbytes + index * (self.block_tokens * self._layout.kv_row_bytes)
        self._key_address = np.concatenate([self._key_address, address + index * stride_bytes])
        self._row_address = np.concatenate([self._row_address, row_address])
        self._headers = self._headers.append(blocks.headers)

    def score(
        self,
        query: Float16,
        block_indices: ArrayLike,
        key_format: KeyFormat | Sequence[KeyFormat] = KeyFormat.INT8,
    ) -> Scores:
        """Score every token of the named blocks on the device.

        The query is folded over exactly these blocks, so `fraction_bits` depends on them.

        Args:
            query: float16 [heads, head_dim], 1 to 8 heads that share this stream.
            block_indices: integers [blocks], in the order the scores are wanted; may be empty.
            key_format: what to stream, of all blocks or of each.

        Raises:
            ValueError: a wrong shape or dtype, a NaN or infinity, a block that is not sealed.
            JobError, DeviceTimeout, DeviceError: after a retry.

        """
        check_fp16_rows(query, "query", self.head_dim)
        prepared = prepare_query(query)
        indices = self._check_indices(block_indices, "block_indices", self.sealed_blocks)
        if len(indices) == 0:
            none = np.empty((0, len(query)), np.int32)
            return Scores(np.empty(0, np.int64), none, np.zeros(len(query), np.int64))
        formats = key_format if isinstance(key_format, KeyFormat) else tuple(map(KeyFormat, key_format))
        folded = fold_query(prepared, self._headers[indices], formats, self._driver.design.query_code)
        first_tokens = indices * self.block_tokens
        scores = self._driver.score(self._key_address[indices], first_tokens, folded)
        tokens = first_tokens[:, None] + np.arange(self.block_tokens)
        return Scores(tokens.reshape(-1), scores, folded.score_fraction_bits)

    def fetch(self, tokens: ArrayLike) -> tuple[Float16, Float16]:
        """Read FP16 rows back, bit for bit as sealed.

        Args:
            tokens: integers [n] in any order; may be empty.

        Returns:
            keys and values, float16 [n, head_dim] each.

        Raises:
            ValueError: a token that is not sealed, or no integers.
            DeviceError: the read failed twice.

        """
        indices = self._check_indices(tokens, "tokens", self.sealed_tokens)
        if len(indices) == 0:
            return np.empty((0, self.head_dim), np.float16), np.empty((0, self.head_dim), np.float16)
        row_bytes = self._layout.kv_row_bytes
        block, row = np.divmod(indices, self.block_tokens)
        rows = self._driver.access.read_gather(self._row_address[block] + row * row_bytes, row_bytes)
        pair = rows.view(np.float16)
        return pair[:, : self.head_dim], pair[:, self.head_dim :]

    def _check_indices(self, values: ArrayLike, what: str, limit: int) -> Int64:
        indices = np.asarray(values)
        if indices.ndim == 1 and len(indices) == 0:
            return np.empty(0, np.int64)
        if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(f"{what} is {indices.dtype} with shape {indices.shape}; allowed: integers [n]")
        bad = (indices < 0) | (indices >= limit)
        if bad.any():
            allowed = f"0 to {limit - 1}" if limit else "none"
            raise ValueError(
                f"{what} holds {indices[bad][0]}; allowed: {allowed}, since stream {self.name!r} has"
                f" {self.sealed_tokens} sealed tokens"
            )
        return indices.astype(np.int64)
