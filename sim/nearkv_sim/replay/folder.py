"""The files of a replay folder, as text by name: Verilog, beats, testbench, description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

RECORD_VERSION = 1


@dataclass(frozen=True)
class Stream:
    """Beats of one stream.

    Attributes:
        name: of the stream.
        width_bits: of its payload.
        words: uint32 [beats, words], least significant word first.
        is_input: whether the beats are offered to it, rather than expected from it.
        beat_name: what a mismatch calls a beat.

    """

    name: str
    width_bits: int
    words: NDArray[np.uint32]
    is_input: bool
    beat_name: str = "beat"


@dataclass(frozen=True)
class Replay:
    """What is replayed.

    Attributes:
        what: the component, for a reader.
        file_name: of its Verilog, with `.v`.
        module: its top module.
        verilog: the text.
        design: name of the design.
        seed: of the job.
        streams: all of the component's, inputs first.
        results: what the expected beats are called, in the plural.
        flags: value of every flag output after a good run; looked at when it ends.
        ignored: other outputs.
        full_rate_cycles: up to and including the last expected beat if nothing pauses.
        job: description of the job, JSON values.
        job_summary: the same in a few words.

    """

    what: str
    file_name: str
    module: str
    verilog: str
    design: str
    seed: int
    streams: Sequence[Stream]
    results: str
    flags: Mapping[str, bool]
    ignored: Sequence[str]
    full_rate_cycles: int
    job: Mapping[str, Any]
    job_summary: str


def render_folder(replay: Replay) -> dict[str, str]:
    """Every file by name; equal replays give equal bytes."""
    streams = [
        {
            "name": stream.name,
            "width_bits": stream.width_bits,
            "beats": len(stream.words),
            "file": f"{stream.name}.hex",
        }
        for stream in replay.streams
    ]
    description = {
        "record_version": RECORD_VERSION,
        "design": replay.design,
        "seed": replay.seed,
        "full_rate_cycles": replay.full_rate_cycles,
        "streams": streams,
        **replay.job,
    }
    ports = [
        {**entry, "is_input": stream.is_input, "beat_name": stream.beat_name, "seed": index + 1}
        for index, (entry, stream) in enumerate(zip(streams, replay.streams, strict=True))
    ]
    values = {
        "replay": replay,
        "ports": ports,
        "inputs": [port for port in ports if port["is_input"]],
        "outputs": [port for port in ports if not port["is_input"]],
        "expected_beats": sum(len(stream.words) for stream in replay.streams if not stream.is_input),
    }
    return {
        replay.file_name: replay.verilog,
        "testbench.v": _template("testbench.v.jinja").render(values),
        **{f"{stream.name}.hex": _as_hex(stream) for stream in replay.streams},
        "replay.json": json.dumps(description, indent=2) + "\n",
        "README.md": _template("README.md.jinja").render(values),
    }


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(files("nearkv_sim.replay").joinpath(name).read_text(encoding="utf-8"))


def _as_hex(stream: Stream) -> str:
    """One beat a line for $readmemh, most significant digit first; words come least significant first."""
    digits = -(-stream.width_bits // 4)
    rows = np.ascontiguousarray(stream.words[:, ::-1], ">u4")
    return "".join(f"{row.tobytes().hex()[-digits:]}\n" for row in rows)
