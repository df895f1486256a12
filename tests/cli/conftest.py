"""The command line with this package's own commands, small traces, and devices that misbehave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from nearkv import cli
from nearkv.commands import policies, run
from nearkv.device.transport import open_transport
from nearkv.experiments.runner import ScorerDevice
from nearkv.trace.format import AttentionTrace, HeadStream, ModelSource, TextSource, TraceHeader, write_trace
from nearkv_sim.commands import designs

COMMANDS = {"designs": designs.COMMAND, "policies": policies.COMMAND, "run": run.COMMAND}
CONFIG = "trace: small.safetensors\npolicy: {name: hill}\nhot_fraction: 0.4\n"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def nearkv(monkeypatch, capsys) -> Callable[..., Outcome]:
    """Run the command line; argparse's own exits count like returned codes."""
    monkeypatch.setattr(cli, "load_commands", lambda *_: COMMANDS)

    def call(*words: object) -> Outcome:
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def small_trace(head_dim: int = 64) -> AttentionTrace:
    """Two streams of two query heads; the last of its four steps starts with three sealed blocks."""
    rng = np.random.default_rng(7)
    first_query_position, steps, streams, digest = 381, 4, 2, "0" * 64
    context = first_query_position + steps
    header = TraceHeader(
        model=ModelSource("synthetic", "CC0-1.0", f"sha256:{digest}"),
        text=TextSource("synthetic", "CC0-1.0", digest),
        layers=tuple(range(streams)),
        kv_heads=((0,),) * streams,
        query_group=2,
        head_dim=head_dim,
        context_tokens=context,
        first_query_position=first_query_position,
        steps=steps,
        command="small_trace()",
    )
    shapes = (context, head_dim), (context, head_dim), (2, steps, head_dim)
    return AttentionTrace(
        header,
        tuple(
            HeadStream(layer, 0, *(rng.standard_normal(shape).astype(np.float16) for shape in shapes))
            for layer in range(streams)
        ),
    )


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current directory, with a configuration and its trace."""
    monkeypatch.chdir(tmp_path)
    write_trace("small.safetensors", small_trace())
    write_trace("narrow.safetensors", small_trace(head_dim=32))
    Path("run.yaml").write_text(CONFIG)
    return tmp_path


class LyingStream:
    """Passes everything on, but changes the last bit of one score in its second job."""

    def __init__(self, stream):
        self._stream = stream
        self._jobs = 0

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def score(self, *args):
        self._jobs += 1
        found = self._stream.score(*args)
        if self._jobs == 2:
            scores = found.scores.copy()
            scores[0, 0] ^= 1
            found = replace(found, scores=scores)
        return found


class LyingDevice(ScorerDevice):
    def open_stream(self, name, head_dim, identity):
        stream = super().open_stream(name, head_dim, identity)
        return LyingStream(stream) if name == "L1.H0" else stream


@pytest.fixture
def other_transport(monkeypatch) -> Callable[[type[ScorerDevice]], None]:
    """Adds a transport `other`: golden arithmetic behind a device class of the test's choice."""
    original = run.open_device

    def add(device_class: type[ScorerDevice]) -> None:
        @contextmanager
        def open_device(config, tlp_log=None):
            if config.transport == "other":
                with open_transport("tlm", config.design_config) as transport:
                    yield device_class(transport)
            else:
                with original(config, tlp_log) as device:
                    yield device

        monkeypatch.setattr(run, "open_device", open_device)

    return add


@pytest.fixture
def lying_device() -> type[ScorerDevice]:
    return LyingDevice
