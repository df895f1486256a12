"""The cycle model of attention on a device equals the compiled RTL."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.pim.final_division import FinalDivision
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS, get_pim_design
from nearkv_sim.cosim import CompiledComponent, pack_words
from nearkv_sim.golden import reduction_timing
from nearkv_sim.golden.pim_program import UnitProgram
from nearkv_sim.golden.reduction_timing import accumulate_cycles, attention_timing, score_latency

DESIGN = replace(get_pim_design("tiny_pim"), block_tokens=64)


@cache
def device() -> CompiledComponent:
    return CompiledComponent(PimDevice(DESIGN), name="pim_device_timing")


def run_heads(tokens: int, heads: int, merge: Merge):
    """Heads back to back on every unit, the next one's keys before the present one's values."""
    ones = np.ones((tokens, DESIGN.head_dim), np.float16)
    program = UnitProgram(DESIGN)

    def keys(head: int) -> None:
        program.write_query(ones[0])
        program.score(head % 2, 0 * ones, first=True)
        program.read_maximum(head % 2)

    keys(0)
    for head in range(heads):
        if head + 1 < heads:
            keys(head + 1)
        # All scores are 0, so the maximum is known beforehand.
        program.accumulate(head % 2, ones, first=True, exponent=1, merge=merge, maximum=0)
        program.read_result(merge)
    commands, rows, _ = program.take()
    inputs = {}
    for unit in range(DESIGN.rtl_units):
        inputs[f"i_command_{unit}"] = pack_words(command_layout(DESIGN), **commands)
        inputs[f"i_rows_{unit}"] = pack_words(row_layout(DESIGN), **rows)
    device().reset()
    output_beats = heads * DESIGN.head_dim // DESIGN.dividers
    return device().run(inputs, {"o_output": output_beats, "o_maximum": heads})


@pytest.mark.parametrize("merge", list(Merge))
@pytest.mark.parametrize("tokens", [1, 2, 8, 64])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_model_equals_rtl(tokens, heads, merge):
    """From the first command to the last output, whether the units or the tree set the pace."""
    timing = attention_timing(DESIGN, tokens * DESIGN.units, heads, merge, barrier=False)
    assert run_heads(tokens, heads, merge).cycles == timing.cycles


@pytest.mark.parametrize("tokens", [1, 8, 64])
def test_barrier_costs_what_the_maximum_takes(tokens):
    """One head: values start when the maximum has come up (as on RTL) and down, a cycle per level."""
    levels = len(DESIGN.fan_ins)
    free = attention_timing(DESIGN, tokens * DESIGN.units, 1, Merge.EXACT, barrier=False).cycles
    held = attention_timing(DESIGN, tokens * DESIGN.units, 1, Merge.EXACT).cycles
    known = run_heads(tokens, 1, Merge.EXACT).ports["o_maximum"].first_cycle
    component = ProcessingUnit(DESIGN)
    last_key_row = component.command_cycles * 2 + DESIGN.beats * (1 + tokens) - 1
    scored = last_key_row + component.latency
    # Without the barrier ACCUMULATE begins once the logits are stored.
    assert held - free == (known + levels) - scored


@pytest.mark.parametrize("design", PIM_DESIGNS.values(), ids=list(PIM_DESIGNS))
def test_constants_are_the_components_own(design):
    unit = ProcessingUnit(design)
    merger = ReductionUnit(2, design.partial_lanes, design.degree)
    assert unit.latency == score_latency(design)
    assert unit.accumulate_cycles == accumulate_cycles(design)
    assert unit.value_latency == reduction_timing._PRODUCT + reduction_timing._SUMS
    assert unit.reader_cycles == reduction_timing._READER
    assert unit.command_cycles == reduction_timing._COMMAND
    assert merger.latency == reduction_timing._UNIT
    assert merger.factor_cycles == 2 * design.degree + 1
    assert FinalDivision(2, 1).latency == reduction_timing._DIVISION


def test_reduction_is_hidden_at_length():
    """Eight heads: the lengths per device from which docs/reduction.md promises at most 2 %."""
    promised = {
        "hbm_pim": {Merge.EXACT: 24576, Merge.EXPONENTIAL: 37376},
        "ddr_pim": {Merge.EXACT: 768, Merge.EXPONENTIAL: 1024},
        "ssd_pim": {Merge.EXACT: 2752, Merge.EXPONENTIAL: 4032},
    }
    for name, lengths in promised.items():
        design = get_pim_design(name)
        for merge, least in lengths.items():
            assert attention_timing(design, least - design.units, 8, merge).exposed_share > 0.02
            for tokens in range(least, 4 * least, design.units):
                assert attention_timing(design, tokens, 8, merge).exposed_share <= 0.02


def test_refusals_quote_the_value():
    with pytest.raises(ValueError, match="tokens is 0 and heads 8"):
        attention_timing(DESIGN, 0, 8, Merge.EXACT)
