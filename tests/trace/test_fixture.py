"""The trace in data/: what its header says, and that its attention is a real model's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.format import AttentionTrace, read_trace
from nearkv.trace.summary import attention_mass


@pytest.fixture(scope="module")
def fixture(fixture_path: Path) -> AttentionTrace:
    return read_trace(fixture_path)  # checks the digest


def test_header(fixture: AttentionTrace, fixture_path: Path) -> None:
    header = fixture.header
    assert header.model.name == "SmolLM2-135M-Instruct.Q4_1"
    assert header.model.licence == "apache-2.0"
    assert header.text.licence == "public domain"
    excerpt = fixture_path.with_name(header.text.name).read_bytes()
    assert header.text.sha256 == hashlib.sha256(excerpt).hexdigest()
    assert [stream.name for stream in fixture.streams] == ["L2.H0", "L12.H0", "L20.H0", "L29.H0"]
    assert (fixture.head_dim, fixture.query_group, fixture.context_tokens) == (64, 3, 4096)
    assert (fixture.first_query_position, fixture.steps) == (3840, 256)


def test_size_of_the_checked_in_data(fixture_path: Path) -> None:
    assert sum(file.stat().st_size for file in fixture_path.parent.iterdir()) <= 5_000_000


def test_command_is_documented(fixture: AttentionTrace, fixture_path: Path) -> None:
    options = fixture.header.command.partition("--context-tokens")[2].partition("--output")[0]
    documented = " ".join(fixture_path.with_name("README.md").read_text().replace("\\\n", " ").split())
    assert options.strip() in documented


def test_attention_is_causal_and_has_sinks(fixture: AttentionTrace) -> None:
    for stream in fixture.streams:
        weights = attention_mass(stream, fixture.first_query_position)
        assert np.isfinite(weights).all()
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-4)
        for step in (0, 100, 255):
            assert not weights[:, step, fixture.first_query_position + step + 1 :].any()
        sink = weights[:, :, 0].mean()
        # SmolLM2 has no sink in its first layers and a strong one in all later ones.
        assert sink < 0.01 if stream.layer == 2 else sink > 0.1
        # Queries attend themselves and their neighbours far above an even share (256 of ~3,968 tokens: 0.06).
        recent = np.mean([weights[:, i, 3840 + i - 255 : 3841 + i].sum(-1).mean() for i in range(256)])
        assert recent > 0.2
