"""Trace files: what is written comes back, and each way of being malformed is refused by name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from nearkv.trace.format import AttentionTrace, TraceError, read_trace, write_trace

KEY = "layer.12.kv_head.1.key"
Edit = Callable[[dict[str, Any], dict[str, np.ndarray]], str | None]


def set_header(**values: object) -> Edit:
    return lambda header, tensors: header.update(values)  # noqa: ARG005


def set_tensor(change: Callable[[np.ndarray], np.ndarray], name: str = KEY) -> Edit:
    return lambda header, tensors: tensors.update({name: change(tensors[name])})  # noqa: ARG005


def with_value(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(tensor: np.ndarray) -> np.ndarray:
        tensor = tensor.copy()
        tensor[3, 4] = value
        return tensor

    return change


def drop(name: str) -> Edit:
    def edit(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:  # noqa: ARG001
        del tensors[name]

    return edit


def drop_key(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:  # noqa: ARG001
    del header["text"]


def exchange(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:  # noqa: ARG001
    value = KEY.replace("key", "value")
    tensors[KEY], tensors[value] = tensors[value], tensors[KEY]


def double_key(header: dict[str, Any], tensors: dict[str, np.ndarray]) -> str:  # noqa: ARG001
    return json.dumps(header)[:-1] + ', "head_dim": 8}'


MALFORMED: dict[str, tuple[Edit, str]] = {
    "foreign format": (set_header(format="other"), "unknown format 'other'"),
    "later version": (set_header(version=2), "unknown version 2"),
    "version as text": (set_header(version="1"), "unknown version '1'"),
    "other dtype": (set_header(dtype="bfloat16"), "unknown dtype 'bfloat16'"),
    "no rotary embedding": (set_header(rope="none"), "unknown rope 'none'"),
    "unknown key": (set_header(colour="red"), "unknown key 'colour' in header"),
    "unknown nested key": (
        lambda header, tensors: header["model"].update(size=1),  # noqa: ARG005
        "unknown key 'size' in header key 'model'",
    ),
    "missing key": (drop_key, "missing key 'text'"),
    "duplicate key": (double_key, "duplicate header key 'head_dim'"),
    "header not JSON": (lambda header, tensors: "{", "the header is not JSON"),  # noqa: ARG005
    "header a list": (lambda header, tensors: "[]", "not a JSON object"),  # noqa: ARG005
    "header nested": (lambda header, tensors: "[" * 100_000, "nested too deeply"),  # noqa: ARG005
    "number as bool": (set_header(query_group=True), "query_group True is not an integer"),
    "zero size": (set_header(head_dim=0), "head_dim 0 is not an integer of at least 1"),
    "fraction": (set_header(context_tokens=40.0), "context_tokens 40.0 is not an integer"),
    "position out of range": (
        set_header(query_positions={"first": 36, "count": 5}),
        "query positions 36…40 are out of range: the context has 40 tokens",
    ),
    "negative position": (
        set_header(query_positions={"first": -1, "count": 5}),
        "first query position -1",
    ),
    "unsorted layers": (set_header(layers=[12, 2]), "layers is unsorted: 2 follows 12"),
    "duplicate layer": (set_header(layers=[2, 2]), "duplicate entry 2 in layers"),
    "layers not a list": (set_header(layers=2), "layers 2 is not a list"),
    "no layers": (set_header(layers=[], kv_heads=[]), "layers is empty"),
    "unsorted heads": (set_header(kv_heads=[[0], [2, 1]]), "kv_heads of layer 12 is unsorted"),
    "duplicate head": (set_header(kv_heads=[[0], [1, 1]]), "duplicate entry 1 in kv_heads of layer 12"),
    "heads not a list": (set_header(kv_heads=1), "kv_heads 1 is not a list of lists"),
    "heads of too few layers": (set_header(kv_heads=[[0]]), "kv_heads has 1 lists for 2 layers"),
    "model without name": (
        lambda header, tensors: header["model"].update(name=""),  # noqa: ARG005
        "name '' is not a non-empty string",
    ),
    "model digest": (
        lambda header, tensors: header["model"].update(digest="sha256:12"),  # noqa: ARG005
        "model digest 'sha256:12'",
    ),
    "text digest": (
        lambda header, tensors: header["text"].update(sha256="x"),  # noqa: ARG005
        "text sha256 'x' is not 64 hex digits",
    ),
    "no digest": (set_header(sha256=""), "sha256 is empty"),
    "digest mismatch": (set_header(sha256="0" * 64), "digest mismatch: the header says 0000"),
    "another position": (set_header(query_positions={"first": 29, "count": 5}), "digest mismatch"),
    "another command": (set_header(command="another"), "digest mismatch"),
    "flipped value": (set_tensor(with_value(0.5)), "digest mismatch"),
    "tensors exchanged": (exchange, "digest mismatch"),
    "missing tensor": (drop(KEY), f"missing tensor {KEY}"),
    "unknown tensor": (
        lambda header, tensors: tensors.update(extra=np.zeros(1, np.float16)),  # noqa: ARG005
        "unknown tensor extra",
    ),
    "wrong shape": (set_tensor(lambda t: t[:-1]), rf"{KEY} has shape [39, 8], the header says [40, 8]"),
    "wrong rank": (set_tensor(np.ravel), "has shape [320]"),
    "wrong dtype": (set_tensor(lambda t: t.astype(np.float32)), "has dtype F32"),
    "not a number": (set_tensor(with_value(np.nan)), f"tensor {KEY} holds nan at [3, 4]"),
    "infinite": (set_tensor(with_value(-np.inf)), f"tensor {KEY} holds -inf at [3, 4]"),
}


def test_round_trip(tmp_path: Path, trace: AttentionTrace) -> None:
    write_trace(tmp_path / "a", trace)
    back = read_trace(tmp_path / "a")
    assert back.header == replace(trace.header, sha256=back.header.sha256)
    assert [stream.name for stream in back.streams] == ["L2.H0", "L12.H1", "L12.H2"]
    for stream, original in zip(back.streams, trace.streams, strict=True):
        for part in ("key", "value", "query"):
            np.testing.assert_array_equal(getattr(stream, part), getattr(original, part), strict=True)
    assert (back.head_dim, back.query_group, back.context_tokens) == (8, 3, 40)
    assert (back.first_query_position, back.steps) == (30, 5)


def test_equal_traces_are_equal_files(tmp_path: Path, trace: AttentionTrace) -> None:
    write_trace(tmp_path / "a", trace)
    write_trace(tmp_path / "b", read_trace(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_is_refused_by_name(kind: str, damaged: Callable[[Edit], Path]) -> None:
    edit, reason = MALFORMED[kind]
    path = damaged(edit)
    with pytest.raises(TraceError, match=re.escape(reason)) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_truncated(tmp_path: Path, trace: AttentionTrace, size: int) -> None:
    write_trace(tmp_path / "whole", trace)
    path = tmp_path / "cut"
    path.write_bytes((tmp_path / "whole").read_bytes()[:size])
    with pytest.raises(TraceError, match="truncated"):
        read_trace(path)


def test_foreign_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, path, metadata={"format": "np"})
    with pytest.raises(TraceError, match="not a trace"):
        read_trace(path)


def test_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none")


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="pipe: a pipe or device; allowed: a regular file"):
        read_trace(tmp_path / "pipe")


def test_existing_file_is_kept(tmp_path: Path, trace: AttentionTrace) -> None:
    path = tmp_path / "a"
    path.write_text("precious")
    with pytest.raises(TraceError, match="exists already"):
        write_trace(path, trace)
    assert path.read_text() == "precious"


def test_write_refuses_what_read_would(tmp_path: Path, trace: AttentionTrace) -> None:
    first, *rest = trace.streams
    bad = {
        "holds nan": replace(first, key=np.full_like(first.key, np.nan)),
        "has dtype float64": replace(first, key=first.key.astype(np.float64)),
        "has shape": replace(first, query=first.query[:, :-1]),
        "are not those of the header": replace(first, kv_head=1),
    }
    for reason, stream in bad.items():
        with pytest.raises(TraceError, match=reason):
            write_trace(tmp_path / "a", replace(trace, streams=(stream, *rest)))
    assert not list(tmp_path.iterdir())
