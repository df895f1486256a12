"""A GGUF file as metadata and dequantised weights, with one-line errors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class GgufFile:
    """Metadata and weights of the GGUF file at `path`.

    Raises ValueError, naming the file, for one that is not readable as GGUF.
    """

    def __init__(self, path: Path) -> None:
        """Read the metadata and the list of tensors; tensor data stay memory-mapped."""
        from gguf import GGUFReader

        with path.open("rb") as file:
            magic = file.read(4)
        if magic != b"GGUF":
            raise ValueError(f"{path}: not a GGUF file (it starts with {magic!r})")
        try:
            reader = GGUFReader(path)
            self.metadata: Mapping[str, Any] = {
                name: field.contents() for name, field in reader.fields.items()
            }
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
            raise ValueError(f"{path}: truncated or damaged GGUF file ({error})") from None
        if reader.byte_order != "I":
            raise ValueError(f"{path}: its byte order is not this machine's")
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._path = path

    @property
    def weight_names(self) -> set[str]:
        """Names of the tensors in the file."""
        return set(self._tensors)

    def weight(self, name: str, rows: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The tensor, or some of its rows, as float32; ValueError where it is missing or cannot be read."""
        from gguf.quants import dequantize

        if name not in self._tensors:
            raise ValueError(f"{self._path}: the model has no tensor {name}")
        tensor = self._tensors[name]
        # A quantised block never spans two rows, so rows can be picked before they are dequantised.
        data = tensor.data if rows is None else tensor.data[rows]
        try:
            return np.asarray(dequantize(data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise ValueError(
                f"{self._path}: tensor {name} has type {kind}, which gguf cannot dequantise"
            ) from None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, rows first."""
        return tuple(int(size) for size in reversed(self._tensors[name].shape))


def sha256_of(path: Path) -> str:
    """SHA-256 of the file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
