"""The JSON header of an attention trace: its fields, their checks, and its one textual form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

FORMAT = "nearkv-attention-trace"
VERSION = 1
DTYPE = "float16"
ROPE = "applied"

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ModelSource:
    """The model the trace was taken from: name, licence (SPDX where known) and `sha256:<hex>` of its file."""

    name: str
    licence: str
    digest: str


@dataclass(frozen=True)
class TextSource:
    """The text the model read: name, licence (SPDX where known) and SHA-256 of the text file (hex)."""

    name: str
    licence: str
    sha256: str


@dataclass(frozen=True)
class TraceHeader:
    """What a trace holds and where it came from.

    `kv_heads[i]` lists the KV heads kept of layer `layers[i]`; both are strictly ascending. Query step s is
    the query of the token at position `first_query_position + s`; positions count tokens from 0.
    `sha256` covers header and tensors (see docs/trace-format.md); `write_trace` fills it, whatever it was.
    A value out of range raises ValueError, which quotes it and says what is allowed.
    """

    model: ModelSource
    text: TextSource
    layers: tuple[int, ...]
    kv_heads: tuple[tuple[int, ...], ...]
    query_group: int
    head_dim: int
    context_tokens: int
    first_query_position: int
    steps: int
    command: str
    sha256: str = ""

    def __post_init__(self) -> None:
        """Check every field that can be checked without the tensors."""
        for source in (self.model, self.text):
            for item in fields(source):
                _require_text(getattr(source, item.name), item.name)
        _require_text(self.command, "command")
        algorithm, _, value = self.model.digest.partition(":")
        if algorithm != "sha256" or not _SHA256.fullmatch(value):
            raise ValueError(f"model digest {self.model.digest!r} is not 'sha256:' and 64 hex digits")
        if not _SHA256.fullmatch(self.text.sha256):
            raise ValueError(f"text sha256 {self.text.sha256!r} is not 64 hex digits")
        if self.sha256 and not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"sha256 {self.sha256!r} is not 64 hex digits")
        for name in ("query_group", "head_dim", "context_tokens", "steps"):
            _require_integer(getattr(self, name), name, least=1)
        _require_integer(self.first_query_position, "first query position", least=0)
        if self.first_query_position + self.steps > self.context_tokens:
            raise ValueError(
                f"query positions {self.first_query_position}…{self.first_query_position + self.steps - 1} "
                f"are out of range: the context has {self.context_tokens} tokens"
            )
        _require_ascending(self.layers, "layers")
        if len(self.kv_heads) != len(self.layers):
            raise ValueError(f"kv_heads has {len(self.kv_heads)} lists for {len(self.layers)} layers")
        for layer, heads in zip(self.layers, self.kv_heads, strict=True):
            _require_ascending(heads, f"kv_heads of layer {layer}")

    def stream_keys(self) -> list[tuple[int, int]]:
        """(layer, kv_head) of every stream, in the order in which the streams are kept."""
        pairs = zip(self.layers, self.kv_heads, strict=True)
        return [(layer, head) for layer, heads in pairs for head in heads]

    def to_json(self) -> dict[str, Any]:
        """The header as the JSON object that the file holds."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": vars(self.model).copy(),
            "text": vars(self.text).copy(),
            "layers": list(self.layers),
            "kv_heads": [list(heads) for heads in self.kv_heads],
            "query_group": self.query_group,
            "head_dim": self.head_dim,
            "context_tokens": self.context_tokens,
            "query_positions": {"first": self.first_query_position, "count": self.steps},
            "dtype": DTYPE,
            "rope": ROPE,
            "command": self.command,
            "sha256": self.sha256,
        }

    def to_text(self) -> str:
        """The header's only textual form, so that equal traces are equal files."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def from_text(cls, text: str) -> TraceHeader:
        """Parse and check a header; ValueError says what is wrong with it."""
        try:
            raw = json.loads(text, object_pairs_hook=_unique_keys)
        except RecursionError:
            raise ValueError("the header is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"the header is not JSON: {error}") from None
        if not isinstance(raw, dict):
            raise ValueError("the header is not a JSON object")
        # Format and version first: another version may well have other keys.
        _require_value(raw, "format", FORMAT)
        _require_value(raw, "version", VERSION)
        _require_keys(raw, _KEYS, "header")
        _require_value(raw, "dtype", DTYPE)
        _require_value(raw, "rope", ROPE)
        for name in ("model", "text", "query_positions"):
            _require_keys(raw[name], _NESTED_KEYS[name], f"header key {name!r}")
        if not raw["sha256"]:
            raise ValueError("sha256 is empty")
        kv_heads = raw["kv_heads"]
        if not isinstance(kv_heads, list):
            raise ValueError(f"kv_heads {kv_heads!r} is not a list of lists")
        return cls(
            model=ModelSource(**raw["model"]),
            text=TextSource(**raw["text"]),
            layers=_as_tuple(raw["layers"], "layers"),
            kv_heads=tuple(_as_tuple(heads, "kv_heads") for heads in kv_heads),
            query_group=raw["query_group"],
            head_dim=raw["head_dim"],
            context_tokens=raw["context_tokens"],
            first_query_position=raw["query_positions"]["first"],
            steps=raw["query_positions"]["count"],
            command=raw["command"],
            sha256=_require_text(raw["sha256"], "sha256"),
        )


_NESTED_KEYS = {
    "model": {item.name for item in fields(ModelSource)},
    "text": {item.name for item in fields(TextSource)},
    "query_positions": {"first", "count"},
}
_KEYS = {"format", "version", "dtype", "rope", "command", "sha256", *_NESTED_KEYS}
_KEYS |= {"layers", "kv_heads", "query_group", "head_dim", "context_tokens"}


def _unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate header key {key!r}")
        found[key] = value
    return found


def _require_keys(raw: object, known: set[str], what: str) -> None:
    if not isinstance(raw, dict):
        raise ValueError(f"{what} is not a JSON object")
    if unknown := sorted(raw.keys() - known):
        raise ValueError(f"unknown key {unknown[0]!r} in {what}; known: {', '.join(sorted(known))}")
    if missing := sorted(known - raw.keys()):
        raise ValueError(f"missing key {missing[0]!r} in {what}")


def _require_value(raw: Mapping[str, Any], key: str, expected: object) -> None:
    value = raw.get(key)
    if type(value) is not type(expected) or value != expected:
        raise ValueError(f"unknown {key} {value!r}; this reader knows {expected!r}")


def _require_text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} {value!r} is not a non-empty string")
    return value


def _require_integer(value: object, name: str, least: int) -> None:
    # bool is an int to Python; in a header it is a mistake.
    if type(value) is not int or value < least:
        raise ValueError(f"{name} {value!r} is not an integer of at least {least}")


def _require_ascending(values: tuple[int, ...], name: str) -> None:
    if not values:
        raise ValueError(f"{name} is empty")
    for value in values:
        _require_integer(value, f"an entry of {name}", least=0)
    for left, right in pairwise(values):
        if left == right:
            raise ValueError(f"duplicate entry {right} in {name}")
        if left > right:
            raise ValueError(f"{name} is unsorted: {right} follows {left}")


def _as_tuple(value: object, name: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{name} {value!r} is not a list")
    return tuple(value)
