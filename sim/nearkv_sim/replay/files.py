"""The files of a replay folder, as text by name."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import jinja2
import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.cosim.words import pack_words
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.replay.job import Recording, record
from nearkv_sim.scorer_verilog import SCORER_MODULE, scorer_verilog

RECORD_VERSION = 1
_SCORES = "o_scores"


def render_replay(design: DesignConfig, blocks: int, seed: int) -> dict[str, str]:
    """Verilog, recorded beats, testbench, description; equal arguments give equal bytes.

    Raises ValueError as `record`.
    """
    recording = record(design, blocks, seed)
    job = recording.job
    beats = job.input_words(design)
    tokens = job.expected_tokens(design)
    beats[_SCORES] = pack_words(
        score_layout(design),
        token=tokens,
        scores=job.expected_scores(design),
        last=np.arange(len(tokens)) == len(tokens) - 1,
    )
    layouts = {
        "i_block": command_layout(design),
        "i_query": query_layout(design),
        "i_keys": key_layout(design),
        _SCORES: score_layout(design),
    }
    widths = {name: layout.size for name, layout in layouts.items()}
    ports = [
        {
            "name": name,
            "width_bits": widths[name],
            "beats": len(words),
            "file": f"{name}.hex",
            "is_input": name != _SCORES,
            "seed": index + 1,
        }
        for index, (name, words) in enumerate(beats.items())
    ]
    description = _describe(design, recording, seed, ports)
    values = {"module": SCORER_MODULE, "ports": ports, "tokens": len(tokens), **description}
    return {
        "scorer.v": scorer_verilog(design),
        "testbench.v": _template("testbench.v.jinja").render(values),
        **{f"{name}.hex": _as_hex(words, widths[name]) for name, words in beats.items()},
        "replay.json": json.dumps(description, indent=2) + "\n",
        "README.md": _template("README.md.jinja").render(values),
    }


def _describe(
    design: DesignConfig, recording: Recording, seed: int, ports: list[dict[str, object]]
) -> dict[str, object]:
    job = recording.job
    return {
        "record_version": RECORD_VERSION,
        "design": design.name,
        "seed": seed,
        "full_rate_cycles": job_cycles(design, job.head_dims, job.key_format),
        "streams": [{key: port[key] for key in ("name", "width_bits", "beats", "file")} for port in ports],
        "blocks": [
            {
                "first_token": int(job.first_token[block]),
                "head_dim": head_dim,
                "key_format": job.key_format[block].name,
                "operands": recording.kinds[block],
            }
            for block, head_dim in enumerate(job.head_dims)
        ],
    }


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(files("nearkv_sim.replay").joinpath(name).read_text(encoding="utf-8"))


def _as_hex(words: NDArray[np.uint32], width_bits: int) -> str:
    """One beat a line for $readmemh, most significant digit first; words come least significant first."""
    digits = -(-width_bits // 4)
    rows = np.ascontiguousarray(words[:, ::-1], ">u4")
    return "".join(f"{row.tobytes().hex()[-digits:]}\n" for row in rows)
