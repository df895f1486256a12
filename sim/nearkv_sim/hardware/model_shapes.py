"""Shapes of published language models, and the parameters and bytes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nearkv_sim.hardware.profile import PROFILE_FOLDER, Profile, named_profile

BYTES_PER_VALUE = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
KIND = "model"


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer. Norm weights and biases, below 0.1 % of the parameters, are left out.

    Attributes:
        layers: decoder layers.
        query_heads, kv_heads: heads per layer; kv_heads divides query_heads.
        head_dim: channels of a head.
        hidden: width of the residual stream.
        ffn: width inside the feed-forward network.
        ffn_matrices: 2 (up, down) or 3 (gate, up, down).
        vocabulary: rows of the embedding.
        tied_embeddings: whether input and output embedding are one matrix.
        dtype: of weights and KV cache.
        max_context_tokens: longest context the model was published with.
        learned_positions: rows of a learned position embedding, 0 without one.
        published_parameters: what its authors say it has.

    ValueError for a count below 1, kv_heads that do not divide query_heads, or an unknown dtype.

    """

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    ffn_matrices: int
    vocabulary: int
    tied_embeddings: bool
    dtype: str
    max_context_tokens: int
    learned_positions: int
    published_parameters: int

    def __post_init__(self) -> None:
        """Refuse what no model can be."""
        for name in ("layers", "query_heads", "kv_heads", "head_dim", "hidden", "ffn", "vocabulary"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; allowed: a whole number from 1")
        if self.query_heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}; allowed: a divisor of {self.query_heads}")
        if self.ffn_matrices not in (2, 3):
            raise ValueError(f"ffn_matrices is {self.ffn_matrices!r}; allowed: 2 or 3")
        if self.dtype not in BYTES_PER_VALUE:
            raise ValueError(f"dtype is {self.dtype!r}; allowed: {', '.join(BYTES_PER_VALUE)}")

    @property
    def bytes_per_value(self) -> int:
        """Bytes of one weight or one channel of a key."""
        return BYTES_PER_VALUE[self.dtype]

    @property
    def qkv_parameters(self) -> int:
        """Weights of the query, key and value projections of a layer."""
        return self.hidden * self.head_dim * (self.query_heads + 2 * self.kv_heads)

    @property
    def output_parameters(self) -> int:
        """Weights of a layer's output projection."""
        return self.hidden * self.head_dim * self.query_heads

    @property
    def ffn_parameters(self) -> int:
        """Weights of a layer's feed-forward network."""
        return self.ffn_matrices * self.hidden * self.ffn

    @property
    def head_parameters(self) -> int:
        """Weights of the output embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        layer = self.qkv_parameters + self.output_parameters + self.ffn_parameters
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.learned_positions * self.hidden

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return self.parameters * self.bytes_per_value

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value

    def kv_bytes(self, context_tokens: int, batch: int) -> int:
        """Bytes of the KV cache of `batch` sequences; ValueError for a context or batch below 1."""
        require_positive("context", context_tokens)
        require_positive("batch", batch)
        return self.kv_bytes_per_token * context_tokens * batch


def require_positive(name: str, value: int) -> None:
    """ValueError unless `value` is a whole number from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; allowed: a whole number from 1")


def model_names() -> list[str]:
    """Names of the models that ship."""
    return sorted(path.stem for path in Path(PROFILE_FOLDER / KIND).glob("*.yaml"))


def open_shape(name: str) -> ModelShape:
    """The shape of a model by name; ValueError lists the known ones."""
    return named_model(name).config


def named_model(name: str) -> Profile[ModelShape]:
    """A model by name; ValueError lists the known ones."""
    return named_profile(KIND, name, ModelShape)
