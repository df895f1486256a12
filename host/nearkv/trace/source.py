"""A model file and a text, checked and ready to be run."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearkv.trace import tokens
from nearkv.trace.gguf_file import GgufFile
from nearkv.trace.llama import LlamaConfig


class ModelText:
    """The first `context_tokens` tokens of a text as a model reads them.

    Attributes:
        config: of the model.
        model: its file.
        weight: loads a weight, see `nearkv.trace.llama.WeightLoader`.
        tied: whether the embedding is the output matrix as well.

    Raises ValueError, which names the file, for a model, tokeniser or context that is not supported, and
    without the packages that read them; OSError for a file that cannot be read.

    """

    def __init__(self, model: Path, text: Path, context_tokens: int) -> None:
        missing = [name for name in ("gguf", "tokenizers") if find_spec(name) is None]
        if missing:
            raise ValueError(
                f"a model needs {missing[0]}, which the extra `capture` installs: pip install -e '.[capture]'"
            )
        self._text_path, self._context_tokens = text, context_tokens
        self._text = _read_text(text)
        self._model_path = model
        self.model = GgufFile(model)
        try:
            self.config = LlamaConfig.from_metadata(self.model.metadata)
            _check_weights(self.config, self.model)
            if not 1 <= context_tokens <= self.config.max_context_tokens:
                raise ValueError(
                    f"context of {context_tokens} tokens; allowed: 1…{self.config.max_context_tokens}"
                )
        except ValueError as error:
            raise ValueError(f"{model}: {error}") from None
        self.weight = self.model.weight
        self.tied = "output.weight" not in self.model.weight_names

    @cached_property
    def token_ids(self) -> NDArray[np.int64]:
        """int64 [context_tokens]; ValueError for a tokeniser that is not supported, or a text too short."""
        try:
            ids = np.array(tokens.encode(self.model.metadata, self._text), dtype=np.int64)
        except ValueError as error:
            raise ValueError(f"{self._model_path}: {error}") from None
        if len(ids) < self._context_tokens:
            raise ValueError(
                f"{self._text_path}: the text has {len(ids)} tokens, asked for {self._context_tokens}"
            )
        return ids[: self._context_tokens]


def _read_text(path: Path) -> str:
    try:
        # Bytes, not text mode: line ends are part of what the model reads.
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error})") from None


def _check_weights(config: LlamaConfig, model: GgufFile) -> None:
    expected = config.weight_shapes()
    # Biases, experts or rotary factors: the model would run, and compute something else.
    if unknown := sorted(model.weight_names - expected.keys()):
        raise ValueError(f"tensor {unknown[0]} is not part of a plain llama decoder")
    for name, shape in expected.items():
        if name not in model.weight_names:
            if name == "output.weight":  # the embedding serves as output matrix too
                continue
            raise ValueError(f"the model has no tensor {name}")
        if model.shape(name) != shape:
            raise ValueError(f"tensor {name} has shape {model.shape(name)}, its metadata say {shape}")
