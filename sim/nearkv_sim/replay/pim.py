"""The replay folder of a PIM device."""

from __future__ import annotations

import numpy as np

from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.final_division import output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.spec.attention import MAXIMUM, Merge
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_sim.pim_job import random_job
from nearkv_sim.pim_verilog import PIM_MODULE, pim_verilog
from nearkv_sim.replay.folder import Replay, Stream, render_folder

MAX_TOKENS = 1 << 20  # over all heads and units; the model works out every unit, instantiated or not


def render_pim_replay(
    design: PimDesign, *, heads: int, unit_tokens: int, merge: Merge, seed: int
) -> dict[str, str]:
    """Verilog, recorded beats, testbench, description; equal arguments give equal bytes.

    Raises ValueError for a negative seed, for more than MAX_TOKENS over all heads, and as `random_job`.
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; allowed: from 0")
    if 0 < unit_tokens <= design.block_tokens and heads > (
        most := MAX_TOKENS // (design.units * unit_tokens)
    ):
        raise ValueError(
            f"heads is {heads}; design {design.name} allows: 1 to {most} with unit_tokens {unit_tokens}"
        )
    job = random_job(
        design, heads=heads, unit_tokens=unit_tokens, merge=merge, rng=np.random.default_rng(seed)
    )
    widths_bits = {
        "i_command": command_layout(design).size,
        "i_rows": row_layout(design).size,
        "i_level": partial_layout(design.partial_lanes).size,
    }
    streams = [
        Stream(name, width_bits, words, is_input=True)
        for name, words in job.inputs.items()
        for kind, width_bits in widths_bits.items()
        if name.startswith(kind)
    ]
    for name, width_bits in (("o_output", output_layout(design.dividers).size), ("o_maximum", MAXIMUM.width)):
        streams.append(Stream(name, width_bits, job.outputs[name], is_input=False, beat_name=f"{name} beat"))
    merged = merge.name.lower()
    return render_folder(
        Replay(
            what="PIM device",
            file_name="pim_device.v",
            module=PIM_MODULE,
            verilog=pim_verilog(design),
            design=design.name,
            seed=seed,
            streams=streams,
            results="beats",
            flags={"o_error": False, "o_saturated": job.saturated},
            ignored=[],
            full_rate_cycles=job.full_rate_cycles,
            job={
                "merge": merged,
                "units": design.units,
                "instantiated_units": design.rtl_units,
                "unit_tokens": unit_tokens,
                "heads": list(job.kinds),
            },
            job_summary=f"rows of each of the {heads} heads, {unit_tokens} tokens per unit, {merged} merge",
        )
    )
