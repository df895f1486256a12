"""The replay folder of a scorer."""

from __future__ import annotations

import numpy as np

from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.cosim.words import pack_words
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.replay.folder import Replay, Stream, render_folder
from nearkv_sim.replay.job import record
from nearkv_sim.scorer_verilog import SCORER_MODULE, scorer_verilog


def render_replay(design: DesignConfig, blocks: int, seed: int) -> dict[str, str]:
    """Verilog, recorded beats, testbench, description; equal arguments give equal bytes.

    Raises ValueError as `record`.
    """
    recording = record(design, blocks, seed)
    job = recording.job
    tokens = job.expected_tokens(design)
    beats = job.input_words(design)
    inputs = {
        "i_block": command_layout(design),
        "i_query": query_layout(design),
        "i_keys": key_layout(design),
    }
    expected = pack_words(
        score_layout(design),
        token=tokens,
        scores=job.expected_scores(design),
        last=np.arange(len(tokens)) == len(tokens) - 1,
    )
    streams = [Stream(name, layout.size, beats[name], is_input=True) for name, layout in inputs.items()]
    streams.append(Stream("o_scores", score_layout(design).size, expected, is_input=False, beat_name="score"))
    described = [
        {
            "first_token": int(job.first_token[block]),
            "head_dim": head_dim,
            "key_format": job.key_format[block].name,
            "operands": recording.kinds[block],
        }
        for block, head_dim in enumerate(job.head_dims)
    ]
    return render_folder(
        Replay(
            what="scorer",
            file_name="scorer.v",
            module=SCORER_MODULE,
            verilog=scorer_verilog(design),
            design=design.name,
            seed=seed,
            streams=streams,
            results="scores",
            flags={"o_overflow": False, "o_framing_error": False},
            ignored=["o_lanes_active"],
            full_rate_cycles=job_cycles(design, job.head_dims, job.key_format),
            job={"blocks": described},
            job_summary=f"head_dim, format and operands of each of the {blocks} key blocks",
        )
    )
