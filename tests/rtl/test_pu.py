"""ProcessingUnit in its three shapes, compiled, against its golden twin."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.spec.attention import EMPTY_MAXIMUM, Merge
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS, get_pim_design
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.partial_beats import partial_of
from nearkv_sim.golden.pim_program import UnitProgram
from nearkv_sim.golden.stored_rows import quantise_int8, value_exponent

DRAIN_CYCLES = 100
FLAGS = ("o_saturated", "o_invalid", "o_overflow", "o_sequence_error", "o_framing_error")


@cache
def compiled(name: str) -> CompiledComponent:
    return CompiledComponent(ProcessingUnit(get_pim_design(name)), name=f"pu_{name}")


def run(unit: CompiledComponent, program: UnitProgram, stalls=None, mend=None):
    """Run a program on the RTL; returns the run, its beats and those expected."""
    design = program.design
    commands, rows, expected = program.take()
    if mend:
        mend(commands, rows)
    result = unit.run(
        {
            "i_command": pack_words(command_layout(design), **commands),
            "i_rows": pack_words(row_layout(design), **rows),
        },
        {"o": len(expected["data"])},
        stalls=stalls,
        drain_cycles=DRAIN_CYCLES,
    )
    return result, unpack_words(partial_layout(design.partial_lanes), result.outputs["o"]), expected


def raised(result) -> set[str]:
    return {flag for flag in FLAGS if result.flags[flag].high_cycles}


def rows_of(rng, design, tokens: int, scale: float, *, int8: bool):
    """Rows of magnitudes over four decades."""
    rows = rng.standard_normal((tokens, design.head_dim)) * scale * 10.0 ** rng.uniform(-3, 1, (tokens, 1))
    return quantise_int8(rows.astype(np.float16)) if int8 else rows.astype(np.float16)


def exact_job(program, rng, slot: int, *, int8: bool) -> None:
    """Two blocks of keys, then two of values, under a maximum that another shard may have raised."""
    design = program.design
    tokens = rng.integers(0, design.block_tokens // 2 + 1, 2)
    keys = [rows_of(rng, design, n, 1, int8=int8) for n in tokens]
    values = [rows_of(rng, design, n, 5, int8=int8) for n in tokens]
    exponent = max(value_exponent(v) for v in values)
    program.score(slot, keys[0], first=True)
    program.score(slot, keys[1], first=False)
    maximum = min(program.read_maximum(slot) + int(rng.choice([0, 1, 20])), 32767)
    for block, first in zip(values, (True, False), strict=True):
        program.accumulate(slot, block, first=first, exponent=exponent, merge=Merge.EXACT, maximum=maximum)
    program.read_result(Merge.EXACT)


def exponential_job(program, rng, *, int8: bool) -> None:
    """Blocks in alternating slots, more than a slot holds, under a running maximum."""
    design = program.design
    for block in range(4):
        tokens = int(rng.integers(1, design.block_tokens // 2 + 1))
        program.score(block % 2, rows_of(rng, design, tokens, 1, int8=int8), first=True)
        values = rows_of(rng, design, tokens, 5, int8=int8)
        merge = Merge.EXPONENTIAL
        program.accumulate(block % 2, values, first=block == 0, exponent=14, merge=merge)
    program.read_result(Merge.EXPONENTIAL)


def test_two_tokens_by_hand():
    """Scores 0 and far below: l = 1.0, o = v of the first token, in units of 2^-26 and 2^(1−26)."""
    design = get_pim_design("tiny_pim")
    program, unit = UnitProgram(design), compiled("tiny_pim")
    keys, values = np.zeros((2, 16), np.float16), np.zeros((2, 16), np.float16)
    keys[1], values[0], values[1] = -1000, 1.5, 1
    program.write_query(np.full(16, 8, np.float16))
    program.score(0, keys, first=True)
    assert program.read_maximum(0) == 0
    program.accumulate(0, values, first=True, exponent=1, merge=Merge.EXACT, maximum=0)
    program.read_result(Merge.EXACT)
    unit.reset()
    result, beats, _ = run(unit, program)
    partial, exponent = partial_of(beats["data"][1:], 16)
    assert exponent.tolist() == [1]
    assert partial.total.tolist() == [1 << 26]
    assert partial.sums.tolist() == [[3 << 24] * 16]
    assert beats["last"].tolist() == [1, 0, 0, 0, 0, 1]
    assert raised(result) == {"o_saturated"}  # −1000·8·16/4·log2 e lies below −2^15


@pytest.mark.parametrize("name", list(PIM_DESIGNS))
def test_random_programs_with_pauses(name):
    """Heads of every kind back to back; full rate, then pauses on commands, rows and results."""
    unit = compiled(name)
    for seed, stalls in enumerate(
        [None, Stalls(1), Stalls(2, 0.5, 0.7, mean_burst_cycles=9), Stalls(3, 0.0, 0.9)]
    ):
        rng = np.random.default_rng(seed)
        program = UnitProgram(get_pim_design(name))
        for head in range(6):
            query = rng.standard_normal(program.design.head_dim) * 10.0 ** rng.uniform(-1, 1)
            program.write_query(query.astype(np.float16))
            if rng.integers(2):
                exact_job(program, rng, head % 2, int8=bool(rng.integers(2)))
            else:
                exponential_job(program, rng, int8=bool(rng.integers(2)))
        unit.reset()
        result, beats, expected = run(unit, program, stalls)
        for field in expected:
            # A lone maximum carries no merge kind of its own.
            assert np.array_equal(beats[field], expected[field]), field
        assert raised(result) <= {"o_saturated"}
        assert (program.model.saturated > 0) == bool(result.flags["o_saturated"].high_cycles)


@pytest.mark.parametrize("name", list(PIM_DESIGNS))
@pytest.mark.parametrize("int8", [False, True])
def test_one_beat_per_cycle_in_both_phases(name, int8):
    """From a block's first to its last row beat the lanes never rest; start-up as the properties say."""
    design = get_pim_design(name)
    unit, rng = compiled(name), np.random.default_rng(0)
    component = ProcessingUnit(design)
    tokens = design.block_tokens
    program = UnitProgram(design)
    program.write_query(np.ones(design.head_dim, np.float16))
    unit.reset()
    query, _, _ = run(unit, program)
    assert query.flags["o_lanes_active"].first_high_cycle == component.command_cycles
    lane_beats = tokens * design.beats

    program.score(0, rows_of(rng, design, tokens, 1, int8=int8), first=True)
    keys, _, _ = run(unit, program)
    program.read_maximum(0)
    run(unit, program)
    values = rows_of(rng, design, tokens, 1, int8=int8)
    program.accumulate(0, values, first=True, exponent=14, merge=Merge.EXPONENTIAL)
    sums, _, _ = run(unit, program)
    for result, lead in ((keys, component.command_cycles), (sums, component.accumulate_cycles)):
        active = result.flags["o_lanes_active"]
        assert active.first_high_cycle == lead
        assert result.cycles == lead + lane_beats
        assert active.high_cycles >= lane_beats - 1  # an INT8 run ends with its last bus beat
        assert result.ports["i_rows"].transfers == lane_beats // (2 if int8 else 1)


@pytest.mark.parametrize("name", ["tiny_pim", "hbm_pim"])
def test_latency_of_scores_and_sums(name):
    """READ right behind the last row: the header leaves when the last logit, or sum, has settled."""
    design = get_pim_design(name)
    unit, component = compiled(name), ProcessingUnit(design)
    program = UnitProgram(design)
    program.write_query(np.ones(design.head_dim, np.float16))
    unit.reset()
    run(unit, program)
    rows = np.ones((2, design.head_dim), np.float16)
    program.score(0, rows, first=True)
    program.read_maximum(0)
    result, beats, expected = run(unit, program)
    assert np.array_equal(beats["data"], expected["data"])
    last_row = result.ports["i_rows"].last_cycle
    # In flight until the write, seen one cycle later, then header and buffer.
    assert result.ports["o"].first_cycle - last_row == component.latency + component.reader_cycles
    program.accumulate(0, rows, first=True, exponent=1, merge=Merge.EXPONENTIAL)
    program.read_result(Merge.EXPONENTIAL)
    result, beats, expected = run(unit, program)
    assert np.array_equal(beats["data"], expected["data"])
    last_row = result.ports["i_rows"].last_cycle
    assert result.ports["o"].first_cycle - last_row == component.value_latency + component.reader_cycles
    rows_per_beat = design.partial_lanes // design.lanes
    first_beat = 1 + rows_per_beat  # the memory's latency, then a group of rows
    assert (
        result.cycles - result.ports["o"].first_cycle
        == first_beat + (design.partial_beats - 1) * rows_per_beat + 1
    )


def test_empty_shard():
    """No tokens: maximum −2^15, zero sums; also after sums of an earlier head."""
    design, unit = get_pim_design("tiny_pim"), compiled("tiny_pim")
    program, none = UnitProgram(design), np.zeros((0, 16), np.float16)
    rng = np.random.default_rng(0)
    program.write_query(np.ones(16, np.float16))
    exact_job(program, rng, 0, int8=False)
    program.score(0, none, first=True)
    assert program.read_maximum(0) == EMPTY_MAXIMUM
    program.accumulate(0, none, first=True, exponent=-2, merge=Merge.EXACT, maximum=3)
    program.read_result(Merge.EXACT)
    unit.reset()
    result, beats, expected = run(unit, program)
    assert np.array_equal(beats["data"], expected["data"])
    assert not raised(result)


def spoil(kind: str, commands, rows) -> None:
    """Put one fault into a program of query, two keys and two values of ones."""
    beats = rows["data"].reshape(5, 4, 8)  # row, beat, bytes
    infinity, two, largest = ([0x00, 0x7C], [0x00, 0x40], [0xFF, 0x7B] * 4)
    if kind == "key is Inf":
        beats[1, 2, :2] = infinity
    elif kind == "value reaches 2^E_V":
        beats[4, 3, :2] = two
    elif kind == "dot product beyond 48 bits":
        beats[0] = beats[1] = largest
    elif kind == "maximum below a logit":
        commands["maximum"] -= 1
    elif kind == "last in the wrong place":
        rows["last"][5] = 1
    else:
        assert kind == "none"


# A spoiled logit also lies above the maximum that the program was told.
@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("none", set()),
        ("key is Inf", {"o_invalid", "o_sequence_error"}),
        ("value reaches 2^E_V", {"o_invalid"}),
        ("dot product beyond 48 bits", {"o_overflow", "o_saturated", "o_sequence_error"}),
        ("maximum below a logit", {"o_sequence_error"}),
        ("last in the wrong place", {"o_framing_error"}),
    ],
)
def test_faults_raise_their_flag(kind, flags):
    program, unit = UnitProgram(get_pim_design("tiny_pim")), compiled("tiny_pim")
    ones = np.ones((2, 16), np.float16)
    program.write_query(ones[0])
    program.score(0, ones, first=True)
    top = program.read_maximum(0)
    program.accumulate(0, ones, first=True, exponent=1, merge=Merge.EXACT, maximum=top)
    program.read_result(Merge.EXACT)
    unit.reset()
    result, _, _ = run(unit, program, mend=lambda commands, rows: spoil(kind, commands, rows))
    assert raised(result) == flags


@pytest.mark.parametrize(
    ("change", "quoted"),
    [
        ({"lanes": 3}, "lanes is 3"),
        ({"lanes": 2}, "lanes is 2"),
        ({"head_dim": 12}, "head_dim is 12"),
        ({"head_dim": 20}, "head_dim is 20"),
        ({"block_tokens": 6}, "block_tokens is 6"),
        ({"partial_lanes": 2}, "partial_lanes is 2"),
        ({"dividers": 8}, "dividers is 8"),
        ({"rtl_levels": 3}, "rtl_levels is 3"),
        ({"clock_hz": 0}, "clock_hz is 0"),
        ({"degree": 7}, "degree is 7"),
    ],
)
def test_design_refusals_quote_the_value(change, quoted):
    with pytest.raises(ValueError, match=quoted):
        replace(get_pim_design("tiny_pim"), **change)


def test_unknown_design():
    with pytest.raises(ValueError, match="'nope'; allowed: tiny_pim"):
        get_pim_design("nope")
