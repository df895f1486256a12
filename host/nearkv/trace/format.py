"""Attention traces: queries, keys and values of a real model in one safetensors file.

The format is described in docs/trace-format.md. A file is read whole or refused whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nearkv.trace.header import DTYPE, VERSION, ModelSource, TextSource, TraceHeader

__all__ = [
    "AttentionTrace",
    "HeadStream",
    "ModelSource",
    "TextSource",
    "TraceError",
    "TraceHeader",
    "read_trace",
    "write_trace",
]

METADATA_KEY = "nearkv"
Float16Array = NDArray[np.float16]


class TraceError(ValueError):
    """A trace that cannot be read or written; the message names the file and the reason."""


@dataclass(frozen=True)
class HeadStream:
    """What one KV head of one layer saw.

    `key` and `value` are float16 [context_tokens, head_dim]; `query` is float16
    [query_group, steps, head_dim], one row of steps per query head that shares this KV head.
    Keys and queries are taken after the rotary embedding and are **not** scaled by 1/√head_dim.
    """

    layer: int
    kv_head: int
    key: Float16Array
    value: Float16Array
    query: Float16Array

    @property
    def name(self) -> str:
        """Short name for tables, such as `L12.H0`."""
        return f"L{self.layer}.H{self.kv_head}"


@dataclass(frozen=True)
class AttentionTrace:
    """A header and its streams, ordered by (layer, kv_head).

    Query step i sits at absolute position `first_query_position + i` and attends tokens 0…position, that
    position included.
    """

    header: TraceHeader
    streams: tuple[HeadStream, ...]

    @property
    def head_dim(self) -> int:
        """Elements of one key, value or query."""
        return self.header.head_dim

    @property
    def query_group(self) -> int:
        """Query heads that share one KV head."""
        return self.header.query_group

    @property
    def context_tokens(self) -> int:
        """Tokens of which every stream holds key and value."""
        return self.header.context_tokens

    @property
    def first_query_position(self) -> int:
        """Absolute position (token index from 0) of query step 0."""
        return self.header.first_query_position

    @property
    def steps(self) -> int:
        """Query steps (tokens) of which every stream holds the queries."""
        return self.header.steps


def read_trace(path: str | PathLike[str]) -> AttentionTrace:
    """Read and check a whole trace: structure, shapes, dtype, finite values and digest.

    Raises TraceError, which names the file and the reason, or OSError where the file cannot be opened.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise TraceError(f"{path}: a pipe or device; allowed: a regular file")  # opening a pipe may never end
    with path.open("rb"):  # the operating system's own message for a missing or unreadable file
        pass
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if METADATA_KEY not in metadata:
                raise TraceError(f"{path}: a safetensors file, but not a trace: no {METADATA_KEY!r} metadata")
            header = TraceHeader.from_text(metadata[METADATA_KEY])
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            _check_tensor_list(
                header, {name: (part.get_shape(), _dtype(part.get_dtype())) for name, part in slices.items()}
            )
            tensors = {name: file.get_tensor(name) for name in _expected_shapes(header)}
        trace = AttentionTrace(header, _streams_of(header, tensors))
        _check_finite(tensors)
        if (found := _digest(header, tensors)) != header.sha256:
            raise ValueError(f"digest mismatch: the header says {header.sha256}, the content has {found}")
    except SafetensorError as error:
        raise TraceError(f"{path}: truncated, or not a safetensors file ({error})") from None
    except TraceError:
        raise
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    return trace


def write_trace(path: str | PathLike[str], trace: AttentionTrace) -> None:
    """Check a trace and write it; equal traces give equal bytes.

    Raises TraceError (naming the file) for a trace that `read_trace` would refuse and for a file that
    exists, OSError where the file cannot be written. Nothing is left behind on failure.
    """
    path = Path(path)
    if path.exists():
        raise TraceError(f"{path}: exists already; a trace is never overwritten")
    header = trace.header
    try:
        keys = [(stream.layer, stream.kv_head) for stream in trace.streams]
        if keys != header.stream_keys():
            raise ValueError(f"streams {keys} are not those of the header, {header.stream_keys()}")
        tensors = {
            _tensor_name(stream.layer, stream.kv_head, part): np.ascontiguousarray(getattr(stream, part))
            for stream in trace.streams
            for part in _PARTS
        }
        _check_tensor_list(header, {name: (list(t.shape), str(t.dtype)) for name, t in tensors.items()})
        _check_finite(tensors)
    except ValueError as error:
        raise TraceError(f"{path}: {error}") from None
    header = replace(header, sha256=_digest(header, tensors))
    content = save(tensors, metadata={METADATA_KEY: header.to_text()})
    with path.open("xb") as file:
        try:
            file.write(content)
            file.flush()
        except BaseException:
            path.unlink()
            raise


_PARTS = ("key", "value", "query")


def _dtype(safetensors_name: str) -> str:
    """The numpy name of a safetensors dtype where the format knows it, else the name itself."""
    return DTYPE if safetensors_name == "F16" else safetensors_name


def _tensor_name(layer: int, kv_head: int, part: str) -> str:
    return f"layer.{layer}.kv_head.{kv_head}.{part}"


def _expected_shapes(header: TraceHeader) -> dict[str, list[int]]:
    rows = [header.context_tokens, header.head_dim]
    shapes = {"key": rows, "value": rows, "query": [header.query_group, header.steps, header.head_dim]}
    return {
        _tensor_name(layer, head, part): shapes[part]
        for layer, head in header.stream_keys()
        for part in _PARTS
    }


def _check_tensor_list(header: TraceHeader, found: Mapping[str, tuple[list[int], str]]) -> None:
    """Compare the tensors found (name to shape and dtype) with those the header promises."""
    expected = _expected_shapes(header)
    for name, expected_shape in expected.items():
        if name not in found:
            raise ValueError(f"missing tensor {name}")
        shape, dtype = found[name]
        if shape != expected_shape:
            raise ValueError(f"tensor {name} has shape {shape}, the header says {expected_shape}")
        if dtype != DTYPE:
            raise ValueError(f"tensor {name} has dtype {dtype}, version {VERSION} holds {DTYPE}")
    if unknown := sorted(found.keys() - expected.keys()):
        raise ValueError(f"unknown tensor {unknown[0]}: the header does not list it")


def _check_finite(tensors: Mapping[str, Float16Array]) -> None:
    for name, tensor in tensors.items():
        finite = np.isfinite(tensor)
        if not finite.all():
            index = [int(i) for i in np.argwhere(~finite)[0]]
            raise ValueError(f"tensor {name} holds {tensor[tuple(index)]} at {index}; values must be finite")


def _digest(header: TraceHeader, tensors: Mapping[str, Float16Array]) -> str:
    """SHA-256 of everything the file says: the header but for this digest, then the tensors."""
    digest = hashlib.sha256(f"{replace(header, sha256='').to_text()}\n".encode())
    for name in sorted(tensors):
        # The name too, so that two exchanged tensors are noticed.
        digest.update(f"{name}\n".encode())
        digest.update(tensors[name].astype("<f2", copy=False).tobytes())
    return digest.hexdigest()


def _streams_of(header: TraceHeader, tensors: Mapping[str, Float16Array]) -> tuple[HeadStream, ...]:
    return tuple(
        HeadStream(layer, head, *(tensors[_tensor_name(layer, head, part)] for part in _PARTS))
        for layer, head in header.stream_keys()
    )
