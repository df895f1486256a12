"""`ColdStore`: sealed key blocks and FP16 rows in device memory, scored and fetched there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nearkv.codec.block_header import with_headers
from nearkv.codec.key_block import Float16, check_fp16_rows, no_headers, pack_blocks, quantise_keys
from nearkv.codec.query import FoldedQuery, fold_query, prepare_query
from nearkv.device.descriptors import StoredBlocks
from nearkv.device.driver import ScorerDriver
from nearkv.device.errors import of_stream
from nearkv.device.top_scores import Scores, TopScores
from nearkv_hdl.spec.block_header import HEADER_BYTES, StreamIdentity
from nearkv_hdl.spec.formats import TOKEN_INDEX
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat

Int64 = NDArray[np.int64]
_GENERATION = 1  # of a block that is sealed for the first time


class ColdStore:
    """The cold tier on one device: a set of named streams.

    Args:
        driver: driver of an open transport; all streams share its memory.

    """

    def __init__(self, driver: ScorerDriver) -> None:
        self.driver = driver
        self.streams: dict[str, ColdStream] = {}

    def open_stream(self, name: str, head_dim: int, identity: StreamIdentity | None = None) -> ColdStream:
        """Start the stream of one (sequence, layer, kv head).

        Args:
            name: not in use.
            head_dim: one that the device's design scores.
            identity: what the headers of its blocks say; without it, sequences are numbered as they come.

        Raises ValueError for another name or head_dim, or an identity in use.

        """
        if name in self.streams:
            raise ValueError(f"stream {name!r} is open already; open: {', '.join(self.streams)}")
        self.driver.design.check_head_dim(head_dim)
        if identity is None:
            identity = StreamIdentity(sequence=len(self.streams))
        for other in self.streams.values():
            if other.identity == identity:
                raise ValueError(f"{identity} is that of stream {other.name!r}; allowed: one of its own")
        self.streams[name] = ColdStream(self.driver, name, head_dim, identity)
        return self.streams[name]


class ColdStream:
    """Sealed tokens of one (sequence, layer, kv head); made by `ColdStore.open_stream`.

    The device holds codes, headers and FP16 rows; the host keeps what folding needs of each block, and its
    addresses. Token t lies in block t // block_tokens. A block is sealed once, as its first generation:
    device memory is never given back, so that no address ever has a second block.
    Whatever raises leaves the stream as it was.
    """

    def __init__(self, driver: ScorerDriver, name: str, head_dim: int, identity: StreamIdentity) -> None:
        self.name = name
        self.identity = identity
        self.head_dim = head_dim
        self._driver = driver
        self._layout = driver.design.layout(head_dim)
        self._headers = no_headers(self._layout)
        self._stored = StoredBlocks(identity, *(np.empty(0, np.int64) for _ in range(3)))
        self._row_address: Int64 = np.empty(0, np.int64)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self._layout.block_tokens

    @property
    def sealed_blocks(self) -> int:
        """Blocks on the device."""
        return len(self._stored)

    @property
    def sealed_tokens(self) -> int:
        """Tokens on the device: 0 … sealed_tokens − 1."""
        return self.sealed_blocks * self.block_tokens

    def seal(self, keys: Float16, values: Float16) -> None:
        """Append whole blocks: quantise the keys, write them with headers and FP16 rows to the device.

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
        used_bytes = self._layout.block_bytes + HEADER_BYTES
        stride_bytes = -(-used_bytes // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        index = np.arange(len(blocks))
        first_tokens = self.sealed_tokens + index * self.block_tokens
        generations = np.full(len(blocks), _GENERATION)
        stored = np.zeros((len(blocks), stride_bytes), np.uint8)
        stored[:, :used_bytes] = with_headers(
            pack_blocks(blocks), self._layout, self.identity, first_tokens, generations
        )
        rows = np.concatenate([keys, values], axis=1).view(np.uint8).reshape(len(blocks), -1)
        # The key masters take turns. One transfer for each of their pieces: blocks, then rows.
        key_address, row_address = np.empty((2, len(blocks)), np.int64)
        masters = self._driver.design.key_masters
        turns = (self.sealed_blocks + index) % masters
        row_bytes = rows.shape[1]
        purpose = f"stream {self.name!r} with {len(keys)} more tokens"
        counts = np.bincount(turns, minlength=masters).tolist()
        places = self._driver.allocate_blocks(counts, stride_bytes + row_bytes, purpose)
        for master, pieces in enumerate(places):
            own = index[turns == master]
            for address, count in pieces:
                here, own = own[:count], own[count:]
                content = np.concatenate([stored[here].reshape(-1), rows[here].reshape(-1)])
                self._driver.access.write_memory(address, content)
                place = np.arange(count)
                key_address[here] = address + place * stride_bytes
                row_address[here] = address + count * stride_bytes + place * row_bytes
        added = StoredBlocks(self.identity, key_address, first_tokens, generations)
        self._stored = self._stored.append(added)
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
            JobError: after a retry; names stream, block and tokens if it is about a block.
            DeviceTimeout, DeviceError: after a retry.

        """
        chosen = self._fold(query, block_indices, key_format)
        if chosen is None:
            none = np.empty((0, len(query)), np.int32)
            return Scores(np.empty(0, np.int64), none, np.zeros(len(query), np.int64))
        stored, folded = chosen
        with of_stream(self.name, self.block_tokens):
            scores = self._driver.score(stored, folded)
        tokens = stored.first_tokens[:, None] + np.arange(self.block_tokens)
        return Scores(tokens.reshape(-1), scores, folded.score_fraction_bits)

    def score_topk(
        self,
        query: Float16,
        block_indices: ArrayLike,
        k: int,
        key_format: KeyFormat | Sequence[KeyFormat] = KeyFormat.INT8,
    ) -> TopScores:
        """Score the named blocks on the device and bring the k highest scores of each head, exactly.

        Args:
            query, key_format: as of `score`.
            block_indices: integers [blocks], each once, in any order; may be empty.
            k: from 1 to the design's top-k capacity.

        Raises:
            ValueError: as `score`; a block twice, or another k.
            JobError, DeviceTimeout, DeviceError: as `score`.

        """
        chosen = self._fold(query, block_indices, key_format)
        if chosen is None:
            none = np.empty((len(query), 0), np.int64)
            return TopScores(none, none.astype(np.int32), np.zeros(len(query), np.int64))
        stored, folded = chosen
        with of_stream(self.name, self.block_tokens):
            found = self._driver.score_topk(stored, folded, k)
        return TopScores(found.tokens, found.scores, folded.score_fraction_bits)

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

    def _fold(
        self, query: Float16, block_indices: ArrayLike, key_format: KeyFormat | Sequence[KeyFormat]
    ) -> tuple[StoredBlocks, FoldedQuery] | None:
        """The named blocks and the query folded over them; None if there are none."""
        check_fp16_rows(query, "query", self.head_dim)
        prepared = prepare_query(query)
        indices = self._check_indices(block_indices, "block_indices", self.sealed_blocks)
        if len(indices) == 0:
            return None
        formats = key_format if isinstance(key_format, KeyFormat) else tuple(map(KeyFormat, key_format))
        folded = fold_query(prepared, self._headers[indices], formats, self._driver.design.query_code)
        return self._stored[indices], folded

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
