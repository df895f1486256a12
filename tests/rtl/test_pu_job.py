"""Whole devices as designed, compiled, against the golden model: bits under pauses, cycles at full rate."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS, get_pim_design
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.pim_job import PimJob, random_job
from nearkv_sim.pim_verilog import PIM_MODULE, pim_verilog
from nearkv_sim.synthesis.budgets import budget_problems
from nearkv_sim.synthesis.pim import PIM_FAMILY, computed_totals
from nearkv_sim.synthesis.pim_budgets import PIM_BUDGETS, TINY_PIM_RTL
from nearkv_sim.synthesis.resources import count_resources
from nearkv_sim.synthesis.yosys import synthesise

DRAIN_CYCLES = 100
# Half of the small device, so that other groups enter through ports; it compiles in seconds. A design at full
# width takes the compiler about a minute of CPU time.
SMALL = replace(get_pim_design("tiny_pim"), name="tiny_pim_half", rtl_levels=1)
DESIGNS = [
    pytest.param(SMALL, id=SMALL.name),
    *(
        pytest.param(design, id=name, marks=pytest.mark.slow)
        for name, design in PIM_DESIGNS.items()
        if name != "tiny_pim"
    ),
]


@cache
def compiled(name: str) -> CompiledComponent:
    design = SMALL if name == SMALL.name else get_pim_design(name)
    return CompiledComponent(PimDevice(design), name=f"pim_device_{name}", flatten=False)


def run(job: PimJob, stalls: Stalls | None = None):
    device = compiled(job.design.name)
    device.reset()
    beats = {name: len(words) for name, words in job.outputs.items()}
    result = device.run(job.inputs, beats, stalls=stalls, drain_cycles=DRAIN_CYCLES)
    for name, words in job.outputs.items():
        assert np.array_equal(result.outputs[name], words), name
    assert not result.flags["o_error"].high_cycles
    assert bool(result.flags["o_saturated"].high_cycles) == job.saturated
    return result


@pytest.mark.parametrize("merge", list(Merge))
@pytest.mark.parametrize("design", DESIGNS)
def test_bits_under_pauses_and_cycles_at_full_rate(design, merge):
    """Every kind of head; one token per unit, where the tree sets the pace, up to as many as it can hold."""
    for unit_tokens, heads in ((1, 4), (2, 5), (7, 4), (design.block_tokens, 2)):
        rng = np.random.default_rng(unit_tokens)
        job = random_job(design, heads=heads, unit_tokens=unit_tokens, merge=merge, rng=rng)
        assert run(job).cycles == job.full_rate_cycles
        for stalls in (Stalls(1), Stalls(2, 0.5, 0.7, mean_burst_cycles=9)):
            run(job, stalls)


@pytest.mark.slow
def test_the_small_device_in_one_netlist_takes_what_its_components_do():
    """Two minutes of Yosys; nothing is optimised away between components but a few LUTs."""
    design = get_pim_design("tiny_pim")
    netlist = synthesise(pim_verilog(design), PIM_MODULE, PIM_FAMILY)
    used = count_resources(netlist.cells, PIM_FAMILY)
    computed, _ = computed_totals(design, PIM_BUDGETS["tiny_pim"])
    assert budget_problems("whole", used, {"whole": TINY_PIM_RTL}) == []
    assert (used.dsps, used.brams, used.carries) == (computed.dsps, computed.brams, computed.carries)
    assert computed.luts == pytest.approx(used.luts, rel=0.01)
    assert computed.flip_flops == pytest.approx(used.flip_flops, rel=0.01)


@pytest.mark.parametrize("stream", ["i_rows_1", "i_level1_1"])
def test_a_flipped_bit_is_seen(stream):
    """The comparison would notice: one bit of a value row, or of another group's sums, changes the output."""
    job = random_job(SMALL, heads=1, unit_tokens=3, merge=Merge.EXACT, rng=np.random.default_rng(0))
    words = job.inputs[stream].copy()
    words[-1, 0] ^= 1 << 30
    with pytest.raises(AssertionError):
        run(replace(job, inputs=job.inputs | {stream: words}))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"heads": 0}, "heads is 0"), ({"unit_tokens": 0}, "unit_tokens is 0"), ({"unit_tokens": 9}, "1 to 8")],
)
def test_refusals_quote_the_value(change, message):
    sizes = {"heads": 1, "unit_tokens": 1} | change
    with pytest.raises(ValueError, match=message):
        random_job(SMALL, **sizes, merge=Merge.EXACT, rng=np.random.default_rng(0))
